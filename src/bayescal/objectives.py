"""The terms of the Bayes-CAL objective, as pure functions with closed forms.

Leading dimensions are free: a stack of runs with several posterior draws passes (R, S, …) and every term comes back
as (R, S). B is the batch, C the classes, E the environments, D the joint space. No second-order graph is ever built;
the tests compare each closed form with autograd's double backward in float64.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def cosine_logits(image: Tensor, text: Tensor, scale: float | Tensor) -> Tensor:
    """s · cos(f_I, f_T): image (…, B, D), text (…, C, D) → (…, B, C)."""
    image, text = F.normalize(image, dim=-1), scale * F.normalize(text, dim=-1)
    if image.dim() == 2 < text.dim():  # the same images for every run and draw: one large product, not many narrow ones
        return (image @ text.flatten(0, -2).T).unflatten(1, text.shape[:-1]).movedim(0, -2)
    return image @ text.transpose(-1, -2)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of a batch: logits (…, B, C), labels broadcastable to (…, B) → (…)."""
    return sample_cross_entropy(logits, labels).mean(-1)


def sample_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each sample: (…, B, C), (…, B) → (…, B)."""
    labels = labels.expand(logits.shape[:-1])
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


def irm_penalty(logits: Tensor, labels: Tensor, environments: Tensor, n_environments: int) -> Tensor:
    """IRMv1: Σ over environments present of ( d/dw mean CE(w·z, y) at w = 1 )². → (…)

    For one sample the derivative is Σ_k p_k z_k − z_y; it is averaged inside the environment, squared and summed.
    An environment that has no sample in the batch adds nothing.
    """
    labels = labels.expand(logits.shape[:-1])
    slope = (logits.softmax(-1) * logits).sum(-1) - logits.gather(-1, labels[..., None])[..., 0]  # (…, B)
    member = F.one_hot(environments, n_environments).to(logits.dtype)  # (…, B, E)
    count = member.sum(-2)
    mean = (slope[..., None] * member).sum(-2) / count.clamp(min=1)
    return mean.square().sum(-1)


def feature_gradient(image: Tensor, text: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Direction of ∇_f CE(s·cos(f, T), y), up to the positive factor s/‖f‖: (I − n nᵀ) Tᵀ(p − onehot). → (…, B, D)

    Differentiable in the text features, which is what lets the orthogonality term train both branches.
    """
    n = F.normalize(image, dim=-1)
    residual = logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])  # (…, B, C)
    pull = residual @ F.normalize(text, dim=-1)
    return pull - (pull * n).sum(-1, keepdim=True) * n


def squared_cosine(a: Tensor, b: Tensor, eps: float = 1e-30) -> Tensor:
    """cos²(a, b) along the last dimension; 0 where a vector vanishes."""
    return (a * b).sum(-1).square() / (a.square().sum(-1) * b.square().sum(-1)).clamp(min=eps)


def orthogonality(class_gradient: Tensor, environment_gradient: Tensor) -> Tensor:
    """L_orth: mean over the batch of cos² between the two branches' gradients w.r.t. the image feature. → (…)"""
    return squared_cosine(class_gradient, environment_gradient).mean(-1)


def gaussian_kl(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    """KL( N(mean, std²) ‖ N(prior_mean, prior_std²) ), elementwise: the caller sums over a run's parameters."""
    ratio = (std / prior_std).square()
    shift = ((mean - prior_mean) / prior_std).square()
    return 0.5 * (ratio + shift - 1.0 - torch.log(ratio))
