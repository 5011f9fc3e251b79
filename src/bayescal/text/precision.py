"""The layers of a frozen tower in 16 bits, everything around them in 32.

    embeddings (float32) ─► lower ─► layers in 16 bits ─► raise ─► last norm, projection, losses (float32)

Gradients of losses can be smaller than float16 can say. The backward pass through frozen layers is linear in the
gradient that enters it, so each run's gradient is brought to the order of 1 by a power of two, and its result back by
the same: no rounding comes from it, and no loss scale has to be found.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def lowered(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """x (B, …) in `dtype`, and the function that brings what was computed from it, (B, …), back to x's own."""
    if x.dtype == dtype:
        return x, lambda y: y
    passed = _Passed()
    return _Lower.apply(x, dtype, passed), lambda y: _Raise.apply(y, x.dtype, passed)


class _Passed:
    """What the backward pass notes on its way in and needs on its way out."""

    scale: Tensor  # (B,)


class _Lower(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, passed: _Passed) -> Tensor:
        ctx.dtype, ctx.passed = x.dtype, passed
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.to(ctx.dtype) * _first(ctx.passed.scale, gradient), None, None


class _Raise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, dtype: torch.dtype, passed: _Passed) -> Tensor:
        ctx.dtype, ctx.passed = y.dtype, passed
        return y.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.passed.scale = _power_of_two(gradient.abs().flatten(1).amax(1))
        return (gradient / _first(ctx.passed.scale, gradient)).to(ctx.dtype), None, None


def _power_of_two(largest: Tensor) -> Tensor:
    """The power of two just above each number; 1 where it is zero (or not finite: such a run stays what it is)."""
    exponent = torch.frexp(largest).exponent
    return torch.where((largest > 0) & largest.isfinite(), torch.ldexp(torch.ones_like(largest), exponent), 1.0)


def _first(values: Tensor, like: Tensor) -> Tensor:
    """(B,) shaped so that it multiplies (B, …)."""
    return values.view(-1, *([1] * (like.dim() - 1)))
