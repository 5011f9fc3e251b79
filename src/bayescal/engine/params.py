"""Parameters of a stack of runs, and how a value per run meets them."""

from torch import Tensor

Params = dict[str, Tensor]  # every tensor is (R, …)


def per_run(values: Tensor, like: Tensor) -> Tensor:
    """(R,) shaped so that it multiplies (R, …)."""
    return values.view(-1, *([1] * (like.dim() - 1)))
