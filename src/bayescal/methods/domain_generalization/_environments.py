"""Per-environment averages in a pooled batch, and gradient plumbing that several algorithms share."""

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.methods.losses import one_hot


def membership(environments: Tensor, n_environments: int, like: Tensor) -> Tensor:
    """(R, B) → (R, E, B): one where a sample belongs to an environment."""
    return one_hot(environments, n_environments, like.dtype).transpose(1, 2)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean along the last dimension where mask is one; 0 where it is nowhere one."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def environment_means(values: Tensor, environments: Tensor, n_environments: int) -> tuple[Tensor, Tensor]:
    """Mean of each environment's values (R, B) → means (R, E), present (R, E) as zeros and ones.

    An environment without a sample in the batch has mean 0 and is not present; callers leave it out.
    """
    member = membership(environments, n_environments, values)
    return masked_mean(values[:, None], member), member.any(-1).to(values.dtype)


def scale_gradient(x: Tensor, factor: Tensor | float) -> Tensor:
    """x itself, but its gradient times `factor`; −λ is the gradient reversal of Ganin & Lempitsky (2015)."""
    scaled = x * factor
    return scaled + (x - scaled).detach()


def uniform(seeds: Tensor, stream: str, step: int | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1): seeds (R,) → (R, *shape)."""
    n = torch.Size(shape).numel()
    return (rng.integers(seeds, stream, step, n, 1 << 24).float() / (1 << 24)).view(-1, *shape)


def detached(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same parameters, out of reach of gradients."""
    return {name: value.detach() for name, value in params.items()}
