"""What validation images decide after training: how sure is sure enough, and how sure an answer should sound."""

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.evaluation import metrics

KEEP = 0.95  # share of the correct validation answers that "unsure" may not touch
MARGIN = 1e-5  # in another batch, on another processor or exported, the same image may come out 5e-6 less sure


def unsure_threshold(probs: Tensor, labels: Tensor, keep: float = KEEP) -> Tensor:
    """The confidence below which to say "unsure": probs (R, N, C) of validation images → (R,) float64.

    `metrics.unsure_threshold` and a hair lower. +inf, "unsure" about everything, where no answer is correct.
    """
    return metrics.unsure_threshold(probs, labels, keep).double() - MARGIN


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """The temperature that minimises the cross-entropy of p^(1/T) (Guo et al. 2017). probs (N, C), labels (N,)."""
    logits = probs.double().clamp(min=1e-12).log()
    grid = torch.logspace(-2, 2, 801, dtype=torch.float64, device=probs.device)  # steps of 1.2 %: finer is noise
    losses = torch.stack([F.cross_entropy(logits / t, labels) for t in grid])
    return float(grid[losses.argmin()])


def at_temperature(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised: probs (…, C)."""
    return probs if temperature == 1.0 else (probs.clamp(min=1e-12).log() / temperature).softmax(-1)


def environment_prototypes(features: Tensor, environments: Tensor, n_environments: int) -> Tensor:
    """Mean direction of each environment's images: features (N, D), environments (N,) → (E, D)."""
    features = F.normalize(features, dim=-1)
    member = F.one_hot(environments, n_environments).to(features)
    return F.normalize(member.T @ features, dim=-1)
