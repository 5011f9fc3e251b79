"""Stacking of predictive distributions, with environments as folds: how far each of several models is to be trusted.

    w = argmax over the simplex of   Σ_i log Σ_k w_k p_k(y_i | x_i; trained without i's environment)
                                     + a/K · Σ_k log w_k

p_k(y_i | …) is what model k, trained without the environment of image i, says of the image's true class. The answer in
use is Σ_k w_k p_k with models trained on everything. The second term, a Dirichlet prior worth a images spread evenly
over the K models, pulls the weights towards equal where the images are few or do not tell the models apart.

Yao, Vehtari, Simpson & Gelman, "Using Stacking to Average Bayesian Predictive Distributions", Bayesian Analysis 2018;
with studies as folds: Patil & Parmigiani, "Training replicable predictors in multiple studies", PNAS 2018; Ren, Patil,
Dominici, Parmigiani & Trippa, "Cross-study learning for generalist and specialist predictions", arXiv:2007.12807.
"""

import torch
from torch import Tensor

STEPS = 1000
ENOUGH = 1e-8  # change of a weight in one step, below which nothing is left to gain


def stacking_weights(densities: Tensor, strength: float) -> Tensor:
    """Weights (K,), float64, of K models from their densities (n, K); `strength` is a.

    Expectation–maximisation: the objective is concave, so the only maximum is found from equal weights.
    """
    if densities.dim() != 2 or not len(densities):
        raise ValueError(f"expected densities (images, models) of at least one image, found {tuple(densities.shape)}")
    n, k = densities.shape
    # Only ratios between the models count; the largest of each image becomes 1, so that no image underflows.
    relative = densities.double().clamp(min=1e-300)
    relative = relative / relative.amax(1, keepdim=True)
    weights = torch.full((k,), 1.0 / k, dtype=torch.float64, device=densities.device)
    for _ in range(STEPS):
        share = weights * relative
        share = share / share.sum(1, keepdim=True)  # which model each image would have come from: (n, K)
        new = (share.sum(0) + strength / k) / (n + strength)
        done = bool((new - weights).abs().max() < ENOUGH)
        weights = new
        if done:
            break
    return weights


def true_class_densities(probs: Tensor, labels: Tensor) -> Tensor:
    """What K models say of each image's true class: probs (K, n, C), labels (n,) → (n, K)."""
    return probs.gather(-1, labels.expand(len(probs), -1)[..., None])[..., 0].T


def mixture(weights: Tensor, probs: Tensor) -> Tensor:
    """Σ_k w_k p_k: (K,), (K, n, C) → (n, C)."""
    return torch.einsum("k,knc->nc", weights.to(probs), probs)
