"""The frozen causal text tower, evaluated on prompt trees. Needs torch alone."""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescal.engine.linear import FrozenLinear, add_product, linear
from bayescal.errors import BackboneError
from bayescal.text.precision import lowered

QUICK = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(QUICK * x)


ACTIVATIONS = {"gelu": F.gelu, "quick_gelu": quick_gelu, "silu": F.silu}
# Numbers that autograd keeps per token and layer, in units of the tower's width (measured: 23 to 25).
KEPT_PER_TOKEN = 25


class Block(nn.Module):
    """Pre-norm transformer block, weights only: `TextTower` decides which tokens see which."""

    def __init__(self, width: int, hidden: int, eps: float = 1e-5):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps)
        self.qkv = FrozenLinear(width, 3 * width)
        self.out = FrozenLinear(width, width)
        self.norm2 = nn.LayerNorm(width, eps)
        self.up = FrozenLinear(width, hidden)
        self.down = FrozenLinear(hidden, width)
        self.scale1: Tensor | None  # LayerScale of the models that have it
        self.scale2: Tensor | None
        self.register_buffer("scale1", None)
        self.register_buffer("scale2", None)


class _Heads(torch.autograd.Function):
    """A linear layer whose answers are read as n × (B, H, L, w): queries, keys, values.

    Autograd would first put their gradients side by side, a copy that takes longer than the products it saves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weight)
        n = len(weight) // x.shape[-1]
        return linear(x, weight, bias).unflatten(-1, (n, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        b, _, length, _ = gradients[0].shape
        flat = [gradient.transpose(1, 2).reshape(b * length, -1) for gradient in gradients]  # (B·L, W) each
        weights = ctx.saved_tensors[0].chunk(len(gradients))
        out = linear(flat[0], weights[0].t())
        for gradient, weight in zip(flat[1:], weights[1:], strict=True):
            add_product(out, gradient, weight)
        return out.view(b, length, -1), None, None, None


class Packing(nn.Module):
    """Tails of different lengths without the padding that makes them equally long: (…, K·T, …) ↔ (…, n, …).

    Padding stands behind the end-of-text token, where a causal tower never looks, so any numbers may fill it.
    """

    def __init__(self, real: Tensor | None = None):
        """`real` (K·T,) bool: which positions hold a token; None: all of them."""
        super().__init__()
        self.positions: Tensor | None  # (n,) of the tokens
        self.slots: Tensor | None  # (K·T,): where each position's token is among them
        padded = real if real is not None and not bool(real.all()) else None
        positions = None if padded is None else padded.nonzero()[:, 0]
        slots = None if padded is None else (padded.cumsum(0) - 1).clamp(min=0)
        self.register_buffer("positions", positions, persistent=False)
        self.register_buffer("slots", slots, persistent=False)

    def pack(self, x: Tensor) -> Tensor:
        return x if self.positions is None else x.index_select(1, self.positions)

    def pad(self, x: Tensor) -> Tensor:
        return x if self.slots is None else x.index_select(1, self.slots)


NO_PACKING = Packing()


class TextTower(nn.Module):
    """CLIP's text transformer on a two-level tree: a shared prefix, and one tail per prompt.

    The tower is causal and reads its answer at the end-of-text token. Hence padding after that token never
    matters, a prefix shared by all prompts is computed once, and the last layer is needed only at the ends.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 49408,
        context_length: int = 77,
        width: int = 512,
        heads: int = 8,
        layers: int = 12,
        dim: int = 1024,
        hidden: int | None = None,
        activation: str = "quick_gelu",
        start_token: int = 49406,
        end_token: int = 49407,
    ):
        super().__init__()
        self.width, self.heads, self.layers, self.dim = width, heads, layers, dim
        self.context_length = context_length
        self.activation = activation
        self.start_token, self.end_token = start_token, end_token
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Parameter(torch.empty(context_length, width))
        self.blocks = cast("list[Block]", nn.ModuleList(Block(width, hidden or 4 * width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.empty(width, dim))
        self.projection_bias: Tensor | None
        self.register_buffer("projection_bias", None)
        self.reset_parameters()
        self.requires_grad_(False).eval()

    def reset_parameters(self) -> None:
        """CLIP's initialisation scales, for randomly initialised towers in tests and benchmarks."""
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.01)
        for block in self.blocks:
            nn.init.normal_(block.qkv.weight, std=self.width**-0.5)
            nn.init.normal_(block.out.weight, std=self.width**-0.5 * (2 * self.layers) ** -0.5)
            nn.init.normal_(block.up.weight, std=(2 * self.width) ** -0.5)
            nn.init.normal_(block.down.weight, std=self.width**-0.5 * (2 * self.layers) ** -0.5)
        nn.init.normal_(self.projection, std=self.width**-0.5)

    @property
    def device(self) -> torch.device:
        return self.positions.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the layers."""
        return self.blocks[0].qkv.weight.dtype

    def in_precision(self, dtype: torch.dtype) -> "TextTower":
        """This tower with layers that compute in `dtype`; embeddings, last norm and projection are shared."""
        if dtype == self.dtype:
            return self
        other = copy.copy(self)
        other._modules = {**self._modules, "blocks": copy.deepcopy(self.get_submodule("blocks")).to(dtype)}
        return other

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings without positions: (…) → (…, W)."""
        return self.token_embedding(ids)

    def kept_bytes(self, tokens: int) -> int:
        """What autograd keeps of so many tokens until the backward pass."""
        return tokens * self.layers * self.width * KEPT_PER_TOKEN * self.dtype.itemsize

    def operations(self, tokens: int) -> float:
        """Floating-point operations of reading so many tokens, without attention, which is little for short texts."""
        block = self.blocks[0]
        return (
            2.0
            * tokens
            * self.layers
            * sum(layer.weight.numel() for layer in (block.qkv, block.out, block.up, block.down))
        )

    def forward(self, prefix: Tensor, tails: Tensor, ends: Tensor, packing: "Packing | None" = None) -> Tensor:
        """Text features of K prompts: prefix (B, P, W), tails (B, K, T, W), ends (B or 1, K) → (B, K, D).

        Embeddings come without positions; `ends` is where the end-of-text token stands in each tail. With `packing`,
        the padding behind the ends is computed nowhere but inside the attention.
        """
        packing = packing or NO_PACKING
        b, p, w = prefix.shape
        _, k, t, _ = tails.shape
        prefix, tails = self.with_positions(prefix, tails)
        x, raised = lowered(torch.cat([prefix, packing.pack(tails.reshape(b, k * t, w))], dim=1), self.dtype)
        for block in self.blocks[:-1]:
            x = self._after(block, x, self._attend(block, block.norm1(x), p, k, t, packing))
        return self.project(raised(self._last_block(self.blocks[-1], x, p, k, t, ends, packing)))

    def with_positions(self, prefix: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        p, t = prefix.shape[-2], tails.shape[-2]
        self.refuse_longer(p + t)
        return prefix + self.positions[:p], tails + self.positions[p : p + t]

    def refuse_longer(self, tokens: int) -> None:
        """Than the context that the tower has positions for."""
        if tokens > self.context_length:
            raise BackboneError(
                f"a prompt of {tokens} tokens does not fit the text tower's context of {self.context_length}: "
                "use fewer context vectors or shorter names"
            )

    def read(self, x: Tensor, mask: Tensor, ends: Tensor) -> Tensor:
        """Text features of a short sequence that holds many prompts: x (B, L, W) → (B, K, D).

        `mask` (L, L) is 0 where a token sees another and −∞ elsewhere; `ends` (B or 1, K) are the end-of-text tokens.
        """
        b, _, w = x.shape
        x, raised = lowered(x, self.dtype)
        for block in self.blocks[:-1]:
            q, k, v = _Heads.apply(block.norm1(x), block.qkv.weight, block.qkv.bias, self.heads)
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = self._after(block, x, seen.transpose(1, 2).flatten(2))
        block = self.blocks[-1]
        at = ends[:, :, None].expand(b, -1, w)
        normed = block.norm1(x)
        (q,) = _Heads.apply(normed.gather(1, at), block.qkv.weight[:w], block.qkv.bias[:w], self.heads)
        k, v = _Heads.apply(normed, block.qkv.weight[w:], block.qkv.bias[w:], self.heads)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[ends][:, None])
        return self.project(raised(self._after(block, x.gather(1, at), seen.transpose(1, 2).flatten(2))))

    def _after(self, block: Block, x: Tensor, seen: Tensor) -> Tensor:
        """What a layer makes of its tokens and of what they saw."""
        x = x + scaled(block.out(seen), block.scale1)
        return x + scaled(self.mlp(block, block.norm2(x)), block.scale2)

    @torch.no_grad()
    def encode(self, prompts: Sequence[Sequence[int]], chunk: int = 256, start: Sequence[int] = ()) -> Tensor:
        """Text features (N, D) of fixed prompts given as token ids without start and end tokens.

        `start`: tokens that stand before each of them and are read once.
        """
        device = self.positions.device
        prefix = self.embed(torch.tensor([[self.start_token, *start]], device=device))
        out = []
        for at in range(0, len(prompts), chunk):
            part = [[*prompt, self.end_token] for prompt in prompts[at : at + chunk]]
            length = max(map(len, part))
            ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in part], device=device)
            ends = torch.tensor([[len(prompt) - 1 for prompt in part]], device=device)
            out.append(self(prefix, self.embed(ids)[None], ends)[0])
        return torch.cat(out)

    def project(self, x: Tensor) -> Tensor:
        """From the last layer to the space that images and texts share."""
        x = self.norm(x) @ self.projection
        return x if self.projection_bias is None else x + self.projection_bias

    def mlp(self, block: Block, x: Tensor) -> Tensor:
        return block.down(ACTIVATIONS[self.activation](block.up(x)))

    def _attend(self, block: Block, x: Tensor, p: int, k: int, t: int, packing: "Packing") -> Tensor:
        """Causal attention of every token: prefix tokens to the prefix, tail tokens to the prefix and their tail."""
        b, _, w = x.shape
        h = self.heads
        qkv = block.qkv(x)
        q, key, v = qkv[:, :p].view(b, p, 3, h, w // h).permute(2, 0, 3, 1, 4)  # each (B, H, P, w)
        above = F.scaled_dot_product_attention(q, key, v, is_causal=True)
        tails = packing.pad(qkv[:, p:]).view(b, k, t, 3, h, w // h)
        q_t, k_t, v_t = tails.permute(3, 0, 4, 1, 2, 5)  # each (B, H, K, T, w)
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        below = two_part_attention(q_t, key, v, k_t, v_t, hidden)
        below = packing.pack(below.permute(0, 2, 3, 1, 4).reshape(b, k * t, w))
        return torch.cat([above.transpose(1, 2).reshape(b, p, w), below], dim=1)

    def _last_block(self, block: Block, x: Tensor, p: int, k: int, t: int, ends: Tensor, packing: "Packing") -> Tensor:
        """The last layer at the end-of-text tokens alone: (B, L, W) → (B, K, W)."""
        b, _, w = x.shape
        h = self.heads
        at = ends.expand(b, k)[:, :, None, None].expand(b, k, 1, w)
        x_end = packing.pad(x[:, p:]).view(b, k, t, w).gather(2, at)  # (B, K, 1, W)
        normed = block.norm1(x)
        kv = linear(normed, block.qkv.weight[w:], block.qkv.bias[w:])
        key, v = kv[:, :p].view(b, p, 2, h, w // h).permute(2, 0, 3, 1, 4)  # (B, H, P, w)
        k_t, v_t = packing.pad(kv[:, p:]).view(b, k, t, 2, h, w // h).permute(3, 0, 4, 1, 2, 5)
        q = linear(block.norm1(x_end), block.qkv.weight[:w], block.qkv.bias[:w])
        q = q.view(b, k, h, 1, w // h).transpose(1, 2)  # (B, H, K, 1, w)
        hidden = torch.arange(t, device=x.device) > ends[:, None, :, None, None]  # (B or 1, 1, K, 1, T)
        out = two_part_attention(q, key, v, k_t, v_t, hidden)
        return self._after(block, x_end[:, :, 0], out.permute(0, 2, 3, 1, 4).reshape(b, k, w))


class LazyTower:
    """A text tower that is read when it is first asked for: a model that keeps what its prompts said needs none.

    Its width and device are known before. Safe to share between threads; a copy in another process holds the tower.
    """

    def __init__(self, dim: int, device: torch.device, read: Callable[[], TextTower]):
        self.dim, self.device = dim, device
        self._read: Callable[[], TextTower] | None = read
        self._tower: TextTower | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tower: TextTower) -> "LazyTower":
        """One that is there already."""
        lazy = cls(tower.dim, tower.device, lambda: tower)
        lazy.open()
        return lazy

    @property
    def is_open(self) -> bool:
        return self._tower is not None

    def open(self) -> TextTower:
        with self._lock:
            if self._tower is None:
                assert self._read is not None
                self._tower, self._read = self._read(), None  # with the function goes what it was made from
            return self._tower

    def to(self, device: torch.device) -> "LazyTower":
        """A copy on another device, made when it is needed; this one stays where it is."""
        return LazyTower(self.dim, device, lambda: copy.deepcopy(self.open()).to(device))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyTower.of, (self.open(),)


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale


def two_part_attention(
    q: Tensor, k_prefix: Tensor, v_prefix: Tensor, k_tail: Tensor, v_tail: Tensor, hidden: Tensor
) -> Tensor:
    """Attention of q (B, H, K, Q, w) to a shared prefix (B, H, P, w) and to its own tail (B, H, K, T, w).

    One softmax over both parts; the prefix is never copied per prompt, so memory is linear in K.
    `hidden` (…, Q, T) marks the tail tokens that a query must not see.
    """
    b, h, k, n, w = q.shape
    p = k_prefix.shape[2]
    q = q * (1.0 / math.sqrt(w))
    to_prefix = (q.reshape(b, h, k * n, w) @ k_prefix.transpose(-1, -2)).view(b, h, k, n, p)
    to_tail = (q @ k_tail.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    weights = torch.cat([to_prefix, to_tail], dim=-1).softmax(dim=-1)
    from_prefix = weights[..., :p].reshape(b, h, k * n, p) @ v_prefix
    return from_prefix.view(b, h, k, n, w) + weights[..., p:] @ v_tail


def normalized(features: Tensor) -> Tensor:
    return F.normalize(features, dim=-1)
