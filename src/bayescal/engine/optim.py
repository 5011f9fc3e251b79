"""Element-wise optimisers on stacks: one learning rate per run, equal to torch.optim run by run.

By hand, because torch.optim has one rate and one decay for a whole tensor, and a stack has one of each per run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescal.engine.params import Params, per_run

Factors = Mapping[str, float]  # of the learning rate, for parameters that have one of their own


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum (torch.optim.SGD's convention)."""

    momentum: float = 0.9

    def init(self, params: Params) -> Params:
        return {f"{name}.momentum": torch.zeros_like(value) for name, value in params.items()}

    def step(
        self,
        params: Params,
        grads: Params,
        state: Params,
        lr: Tensor,
        decay: dict[str, Tensor],
        factors: Factors | None = None,
    ) -> None:
        """In place. lr (R,); decay: L2 factor (R,) of each parameter that has one."""
        for name, grad in grads.items():
            value = params[name]
            if name in decay:
                grad = grad + per_run(decay[name], value) * value
            buffer = state[f"{name}.momentum"]
            buffer.mul_(self.momentum).add_(grad)
            value.sub_(_rate(lr, value, name, factors) * buffer)


@dataclass(frozen=True)
class Adam:
    """Adam with weight decay in the gradient (torch.optim.Adam's convention).

    Every parameter counts its own steps, as torch's do, and none while it waits for its turn.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = False

    def init(self, params: Params) -> Params:
        state = {f"{name}.{kind}": torch.zeros_like(v) for name, v in params.items() for kind in ("first", "second")}
        counts = {
            f"{name}.steps": torch.zeros(v.shape[0], dtype=torch.float64, device=v.device) for name, v in params.items()
        }
        return state | counts

    def step(
        self,
        params: Params,
        grads: Params,
        state: Params,
        lr: Tensor,
        decay: dict[str, Tensor],
        factors: Factors | None = None,
    ) -> None:
        """In place. lr (R,); decay: factor (R,) of each parameter that has one."""
        b1, b2 = self.betas
        for name, grad in grads.items():
            value, first, second = params[name], state[f"{name}.first"], state[f"{name}.second"]
            steps = state[f"{name}.steps"].add_(1)
            rate = _rate(lr, value, name, factors)
            if name in decay and self.decoupled:
                value.mul_(1 - rate * per_run(decay[name], value))
            elif name in decay:
                grad = grad + per_run(decay[name], value) * value
            first.mul_(b1).add_(grad, alpha=1 - b1)
            second.mul_(b2).addcmul_(grad, grad, value=1 - b2)
            unbias1, unbias2 = (per_run(1 - b**steps, value).to(value.dtype) for b in self.betas)
            value.sub_(rate * (first / unbias1) / ((second / unbias2).sqrt() + self.eps))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (torch.optim.AdamW's convention)."""

    decoupled: bool = True


def _rate(lr: Tensor, value: Tensor, name: str, factors: Factors | None) -> Tensor:
    """The learning rate of a parameter, shaped to multiply it."""
    rate = per_run(lr, value)
    return rate if factors is None or name not in factors else rate * factors[name]


Optimizer = SGD | Adam


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
