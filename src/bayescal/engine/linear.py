"""Linear layers whose weights stay as they are, by the library that is faster on this processor.

torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors alone. oneDNN, which comes with
torch too, uses it wherever it is: on an AMD EPYC it is 2.2 times as fast (`python -m speed.linear`). The two round
differently and agree otherwise.
"""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW = 16  # rows below which neither is faster


class FrozenLinear(nn.Linear):
    """`nn.Linear` that is not trained; an input may still want its gradient."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class FrozenAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` that is not trained, for tokens (B, L, W) that all see each other."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        masked = key_padding_mask is not None or attn_mask is not None
        if need_weights or masked or key is not value or not self._packed or not _one_dnn():
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        weight, bias, w = self.in_proj_weight, cast("Tensor | None", self.in_proj_bias), self.embed_dim
        if query is key:
            q, k, v = linear(query, weight, bias).chunk(3, dim=-1)
        else:
            q = linear(query, weight[:w], None if bias is None else bias[:w])
            k, v = linear(key, weight[w:], None if bias is None else bias[w:]).chunk(2, dim=-1)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # (B, H, L, w)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return linear(seen, self.out_proj.weight, self.out_proj.bias), None

    @property
    def _packed(self) -> bool:
        """Whether queries, keys and values come from one matrix, and batches come first."""
        return self.in_proj_weight is not None and self.batch_first


def freeze_products(module: nn.Module) -> nn.Module:
    """Let the layers of a tower that is not trained be the two above, in place; their tensors stay where they are."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = FrozenLinear
        elif type(part) is nn.MultiheadAttention and not part.dropout and part.bias_k is None:
            part.__class__ = FrozenAttention
    return module


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, I) · weight (O, I)ᵀ + bias (O,) → (…, O). Gradients reach x alone, unless `weight` asks for its own."""
    if not _by_one_dnn(x, weight):
        return F.linear(x, weight, bias)
    if x.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _Product.apply(x, weight, bias))
    return _product(x, weight, bias)


def add_product(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """out (n, I) += x (n, O) · weight (O, I), in place."""
    if _by_one_dnn(x, weight):
        out.add_(_product(x, weight.t(), None))
    else:
        out.addmm_(x, weight)


def times_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x (n, D) · rowsᵀ (D, M) → (n, M), for many rows that stay as they are.

    One x waits for the rows to be read, and a batch of two products reads them twice as fast as one.
    """
    # First whether it is traced: a graph for any number of images may not ask for their number.
    if torch.compiler.is_compiling() or len(x) != 1 or rows.shape[0] < 2 or not rows.is_contiguous():
        return x @ rows.T
    total, width = rows.shape
    half = -(-total // 2)
    if half + half == total:
        return torch.bmm(rows.unflatten(0, (2, half)), x.T.expand(2, -1, -1)).view(1, total)
    if rows.requires_grad and torch.is_grad_enabled():
        return x @ rows.T
    # The halves of an odd number share the row in the middle.
    halves = rows.as_strided((2, half, width), ((total - half) * width, width, 1), rows.storage_offset())
    first, second = torch.bmm(halves, x.T.expand(2, -1, -1))[..., 0]
    return torch.cat([first, second[1:]])[None]


class _Product(torch.autograd.Function):
    """oneDNN's product, which autograd does not know."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return linear(gradient, weight.t()), None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")


def _by_one_dnn(x: Tensor, weight: Tensor) -> bool:
    return (
        _one_dnn()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() >= FEW * x.shape[-1]
        and not weight.requires_grad
        and not torch.is_autocast_enabled("cpu")
    )


def _one_dnn() -> bool:
    return not torch.compiler.is_compiling() and one_dnn_is_faster()  # not in what `export` traces


@lru_cache
def one_dnn_is_faster() -> bool:
    """Whether this processor has AVX-512 and is not Intel's, and this torch has oneDNN's product."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "AuthenticAMD" in _processor()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
