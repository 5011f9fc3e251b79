"""The terms of the Bayes-CAL objective, as pure functions with closed forms.

Leading dimensions are free: a stack of runs with several posterior samples passes (R, S, …) and every term comes back
as (R, S). B is the batch, C the classes, E the environments, D the joint space. No second-order graph is ever built;
the tests compare each closed form with autograd's double backward in float64.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine.linear import times_rows


def cosine_logits(image: Tensor, text: Tensor, scale: float | Tensor) -> Tensor:
    """s · cos(f_I, f_T): image (…, B, D), text (…, C, D) → (…, B, C)."""
    return weighted_logits(image, class_weights(text, scale))


def class_weights(text: Tensor, scale: float | Tensor) -> Tensor:
    """s · f_T/‖f_T‖: (…, C, D). What prediction keeps of text features, so that no image pays for their length."""
    return scale * F.normalize(text, dim=-1)


def weighted_logits(image: Tensor, weights: Tensor) -> Tensor:
    """Products of the directions of images (…, B, D) with `class_weights` (…, C, D) → (…, B, C)."""
    image = F.normalize(image, dim=-1)
    if image.dim() == 2 < weights.dim():  # the same images for all runs and samples
        # One large product, not many narrow ones.
        return times_rows(image, weights.flatten(0, -2)).unflatten(1, weights.shape[:-1]).movedim(0, -2)
    return image @ weights.transpose(-1, -2)


def one_hot(labels: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """(…) in 0 … n−1 → (…, n). Does not look at the values, which on a GPU would mean waiting for them."""
    return (labels[..., None] == torch.arange(n, device=labels.device)).to(dtype)


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
    gradient = (logits.softmax(-1) * logits).sum(-1) - logits.gather(-1, labels[..., None])[..., 0]  # (…, B)
    member = one_hot(environments, n_environments, logits.dtype)  # (…, B, E)
    count = member.sum(-2)
    mean = (gradient[..., None] * member).sum(-2) / count.clamp(min=1)
    return mean.square().sum(-1)


def residual_direction(logits: Tensor, labels: Tensor) -> Tensor:
    """(p − onehot(y)) / (1 − p_y), the direction of the cross-entropy's gradient in the logits: (…, B, C).

    When a prediction is confident, the length 1 − p_y loses its digits and then underflows. The direction keeps all of
    them: −1 at the label, elsewhere the softmax of the other classes among themselves. With one class there is none: 0.
    """
    if logits.shape[-1] == 1:
        return torch.zeros_like(logits)
    label = one_hot(labels, logits.shape[-1], torch.bool)
    return logits.masked_fill(label, -torch.inf).softmax(-1) - label.to(logits.dtype)


def orthogonality(
    class_side: tuple[Tensor, Tensor, Tensor], environment_side: tuple[Tensor, Tensor, Tensor], scale: float | Tensor
) -> Tensor:
    """L_orth: mean over the batch of cos² between the two losses' gradients at the image feature f. → (…)

    A side is (text features (…, C, D), logits (…, B, C), labels). Its gradient ∇_f CE(s·cos(f, T), y) is, up to the
    factor s·(1 − p_y)/‖f‖,  g = (I − n nᵀ) Tᵀ r  with n = f/‖f‖, rows of T of length 1, r = (p − onehot(y))/(1 − p_y):
    an angle does not depend on lengths, and without this factor, about 1e-9 on confident data, nothing underflows.
    Products of gradients need no vector of D numbers per image:  g·g' = rᵀ (T T'ᵀ) r' − (r·z)(r'·z')  with the cosines
    z = T n. Since r sums to zero, any constant may be taken from T and z; without their means, rounding takes less.
    """
    one, two = _pull(*class_side, scale), _pull(*environment_side, scale)
    product = _product(one, two)
    # Divided one after the other, because the product of two small squares would underflow.
    return ((product / _square(one)) * (product / _square(two))).mean(-1)


def _pull(text: Tensor, logits: Tensor, labels: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T (…, C, D), r (…, B, C) and r·z (…, B) of one side."""
    t, r = F.normalize(text, dim=-1), residual_direction(logits, labels)
    z = (logits - logits.mean(-1, keepdim=True)) / scale
    return t - t.mean(-2, keepdim=True), r, (r * z).sum(-1)


def _product(one: tuple[Tensor, Tensor, Tensor], two: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """g·g' of every image: (…, B)."""
    (t, r, along), (t2, r2, along2) = one, two
    if t.shape[-2] > t.shape[-1]:  # more names than dimensions: then the vectors of D numbers are the smaller part
        return ((r @ t) * (r2 @ t2)).sum(-1) - along * along2
    return ((r @ (t @ t2.transpose(-1, -2))) * r2).sum(-1) - along * along2


def _square(side: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """g·g, not below what rounding leaves of a gradient along n; a gradient of zero has no angle: its cosine is 0."""
    along = side[2]
    square = _product(side, side).clamp(min=0) + torch.finfo(along.dtype).eps * along.square()
    return square.clamp(min=torch.finfo(along.dtype).tiny)


def gaussian_kl(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    """KL( N(mean, std²) ‖ N(prior_mean, prior_std²) ), elementwise: the caller sums over a run's parameters."""
    ratio = std / prior_std
    shift = (mean - prior_mean) / prior_std
    # The logarithm of the ratio, not of its square, which in float32 is zero from a ratio of 1e-23 on.
    return 0.5 * (ratio.square() + shift.square() - 1.0) - torch.log(ratio)
