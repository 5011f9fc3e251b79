"""Element-wise optimisers on stacks: one learning rate per run, equal to torch.optim row by row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Params = dict[str, Tensor]  # every tensor is (R, …)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """(R,) shaped so that it multiplies (R, …)."""
    return values.view(-1, *([1] * (like.dim() - 1)))


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum (torch.optim.SGD's convention)."""

    momentum: float = 0.9

    def init(self, params: Params) -> Params:
        return {f"{name}.momentum": torch.zeros_like(value) for name, value in params.items()}

    def step(self, params: Params, grads: Params, state: Params, lr: Tensor, decay: dict[str, Tensor]) -> None:
        """In place. lr (R,); decay: L2 factor (R,) of each parameter that has one."""
        for name, grad in grads.items():
            value = params[name]
            if name in decay:
                grad = grad + per_row(decay[name], value) * value
            buffer = state[f"{name}.momentum"]
            buffer.mul_(self.momentum).add_(grad)
            value.sub_(per_row(lr, value) * buffer)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (torch.optim.AdamW's convention)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def init(self, params: Params) -> Params:
        state = {f"{name}.{kind}": torch.zeros_like(v) for name, v in params.items() for kind in ("first", "second")}
        first = next(iter(params.values()))
        return state | {"steps": torch.zeros(first.shape[0], dtype=torch.float64, device=first.device)}

    def step(self, params: Params, grads: Params, state: Params, lr: Tensor, decay: dict[str, Tensor]) -> None:
        """In place. lr (R,); decay: decoupled factor (R,) of each parameter that has one."""
        b1, b2 = self.betas
        state["steps"].add_(1)
        for name, grad in grads.items():
            value, first, second = params[name], state[f"{name}.first"], state[f"{name}.second"]
            rate = per_row(lr, value)
            if name in decay:
                value.mul_(1 - rate * per_row(decay[name], value))
            first.mul_(b1).add_(grad, alpha=1 - b1)
            second.mul_(b2).addcmul_(grad, grad, value=1 - b2)
            unbias1, unbias2 = (per_row(1 - b ** state["steps"], value).to(value.dtype) for b in self.betas)
            value.sub_(rate * (first / unbias1) / ((second / unbias2).sqrt() + self.eps))


Optimizer = SGD | AdamW


WARMUP_EPOCHS = 1
WARMUP_RATE = 1e-5


def cosine_with_warmup(base: Tensor, epoch: int, epochs: int) -> Tensor:
    """One warm-up epoch at 1e-5, then half a cosine from the base rate towards zero."""
    if epoch < WARMUP_EPOCHS < epochs:
        return base.clamp(max=WARMUP_RATE)
    done = (epoch - WARMUP_EPOCHS) / max(1, epochs - WARMUP_EPOCHS)
    return base * 0.5 * (1.0 + math.cos(math.pi * max(0.0, done)))


def constant(base: Tensor, epoch: int, epochs: int) -> Tensor:
    return base
