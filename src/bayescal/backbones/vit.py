"""The image tower of `mini`: CLIP's plain vision transformer, with torch alone.

The same module as open_clip's `VisionTransformer` without a norm before the blocks, with the same names of tensors and
the same features. It is here because open_clip imports torchvision and timm, which takes longer than an answer.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayescal.engine.linear import FrozenAttention, FrozenLinear


class Norm(nn.LayerNorm):
    """In the precision of its input, whatever autocast does inside."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


class Block(nn.Module):
    """Pre-norm transformer block: (B, L, W) → (B, L, W)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1 = Norm(width)
        self.attn = FrozenAttention(width, heads, batch_first=True)
        self.ln_2 = Norm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", FrozenLinear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", FrozenLinear(4 * width, width))

    def forward(self, x: Tensor, read: int | None = None) -> Tensor:
        """With `read`, of that many tokens at the start alone, which still see all: (B, read, W)."""
        seen = self.ln_1(x)
        asked = seen if read is None else seen[:, :read]
        x = x[:, :read] + self.attn(asked, seen, seen, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Blocks(nn.Module):
    def __init__(self, width: int, heads: int, layers: int):
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, W) → (B, 1, W): nothing looks at another token behind the last block, so it computes one."""
        *others, last = self.resblocks
        for block in others:
            x = block(x)
        return last(x, 1)


class VisionTransformer(nn.Module):
    """Pixels (B, 3, size, size) → features (B, D), read at the class token."""

    def __init__(self, embed_dim: int, vision: dict[str, Any]):
        """`vision`: the part "vision_cfg" of an open_clip configuration."""
        super().__init__()
        width, patch = vision["width"], vision["patch_size"]
        tokens = (vision["image_size"] // patch) ** 2 + 1
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(tokens, width))
        self.transformer = Blocks(width, width // vision["head_width"], vision["layers"])
        self.ln_post = Norm(width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def forward(self, pixels: Tensor) -> Tensor:
        """In a lower precision (autocast), the products of the blocks are in it; what they add to stays in float32.

        So do the first product and the last, a hundredth of the work: with all in bfloat16, features were 0.9978 from
        float32 (smallest cosine), so 0.9995 (docs/backbones.md).
        """
        with _as_given(pixels.device):
            x = self.conv1(pixels).flatten(2).transpose(1, 2)  # (B, L − 1, W)
        n = x.shape[0]  # not len(x), which `export` would take for a constant
        x = torch.cat([self.class_embedding.expand(n, 1, -1), x], dim=1)
        x = self.transformer(x + self.positional_embedding)
        with _as_given(pixels.device):
            return self.ln_post(x)[:, 0] @ self.proj


def _as_given(device: torch.device) -> AbstractContextManager[Any]:
    """Without autocast, where there is any; `export` traces neither."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
