"""The image tower of the first mini, with random weights: what the speed of mini 2 is compared with.

CLIP's ResNet, width 32, at 128 px, its batch norms already folded into the convolutions, as the package did. It has
open_clip's names of tensors and gives the same features (a test compares), and needs torch alone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, SIDE, DIM, HEADS = 32, 128, 512, 16
BLOCKS = (3, 4, 6, 3)  # of each of the four stages
GROWTH = 4  # a block ends with this many times its inner channels


class Residual(nn.Module):
    """1 × 1, 3 × 3, 1 × 1; a stride is an average over pixels, before the last of them."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, width, 1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, GROWTH * width, 1)
        self.downsample = None
        if inputs != GROWTH * width:
            self.downsample = nn.ModuleDict({"0": nn.Conv2d(inputs, GROWTH * width, 1)})

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv3(self._smaller(F.relu_(self.conv2(F.relu_(self.conv1(x))))))
        old = x if self.downsample is None else self.downsample["0"](self._smaller(x))
        return F.relu_(new.add_(old))

    def _smaller(self, x: Tensor) -> Tensor:
        return x if self.stride == 1 else F.avg_pool2d(x, self.stride)


class AttentionPool(nn.Module):
    """(B, C, side, side) → (B, DIM): what the mean of all places reads from them."""

    def __init__(self, channels: int, side: int):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, channels) / channels**0.5)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(channels, channels) for _ in range(3))
        self.c_proj = nn.Linear(channels, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + self.positional_embedding
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))[:, 0]


class FirstMini(nn.Module):
    """Pixels (B, 3, SIDE, SIDE) → features (B, DIM)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH // 2, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(WIDTH // 2, WIDTH // 2, 3, padding=1)
        self.conv3 = nn.Conv2d(WIDTH // 2, WIDTH, 3, padding=1)
        inputs = WIDTH
        for i, count in enumerate(BLOCKS):
            width, stage = WIDTH * 2**i, nn.Sequential()
            for j in range(count):
                stage.append(Residual(inputs, width, stride=2 if i and not j else 1))
                inputs = GROWTH * width
            self.add_module(f"layer{i + 1}", stage)
        self.attnpool = AttentionPool(inputs, SIDE // 32)
        self.to(memory_format=torch.channels_last)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu_(self.conv3(F.relu_(self.conv2(F.relu_(self.conv1(pixels))))))
        x = F.avg_pool2d(x, 2)
        for i in range(len(BLOCKS)):
            x = self.get_submodule(f"layer{i + 1}")(x)
        return self.attnpool(x)
