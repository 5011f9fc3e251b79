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


def one_hot(labels: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """(…) in 0 … n−1 → (…, n). Without a look at the values, which on a GPU would mean to wait for them."""
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
    slope = (logits.softmax(-1) * logits).sum(-1) - logits.gather(-1, labels[..., None])[..., 0]  # (…, B)
    member = one_hot(environments, n_environments, logits.dtype)  # (…, B, E)
    count = member.sum(-2)
    mean = (slope[..., None] * member).sum(-2) / count.clamp(min=1)
    return mean.square().sum(-1)


def residual(logits: Tensor, labels: Tensor) -> Tensor:
    """p − onehot(y), the slope of the cross-entropy in the logits: (…, B, C).

    At the label it is minus the sum of the others, which keeps its digits where p_y − 1 has none left.
    """
    label = one_hot(labels, logits.shape[-1], logits.dtype)
    others = logits.softmax(-1) * (1.0 - label)
    return others - others.sum(-1, keepdim=True) * label


def orthogonality(
    class_side: tuple[Tensor, Tensor, Tensor], environment_side: tuple[Tensor, Tensor, Tensor], scale: float | Tensor
) -> Tensor:
    """L_orth: mean over the batch of cos² between the two losses' gradients at the image feature f. → (…)

    A side is (text features (…, C, D), logits (…, B, C), labels). Its gradient ∇_f CE(s·cos(f, T), y) is, up to the
    factor s/‖f‖,  g = (I − n nᵀ) Tᵀ r  with n = f/‖f‖, rows of T of length 1, r = p − onehot(y). Products of gradients
    need no vector of D numbers per image:  g·g' = rᵀ (T T'ᵀ) r' − (r·z)(r'·z')  with z = T n, the cosines. Since r sums
    to zero, any constant may be taken from T and z; without their means, less is lost to rounding.
    """
    one, two = _pull(*class_side, scale), _pull(*environment_side, scale)
    # Where a gradient vanishes there is no angle: 0.
    return (_product(one, two).square() / (_square(one) * _square(two)).clamp(min=1e-30)).mean(-1)


def _pull(text: Tensor, logits: Tensor, labels: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T (…, C, D), r (…, B, C) and r·z (…, B) of one side."""
    t, r = F.normalize(text, dim=-1), residual(logits, labels)
    z = (logits - logits.mean(-1, keepdim=True)) / scale
    return t - t.mean(-2, keepdim=True), r, (r * z).sum(-1)


def _product(one: tuple[Tensor, Tensor, Tensor], two: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """g·g' of every image: (…, B)."""
    (t, r, along), (t2, r2, along2) = one, two
    return ((r @ (t @ t2.transpose(-1, -2))) * r2).sum(-1) - along * along2


def _square(side: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """g·g, not below what rounding leaves of a gradient along n."""
    along = side[2]
    return _product(side, side).clamp(min=0) + torch.finfo(along.dtype).eps * along.square()


def gaussian_kl(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    """KL( N(mean, std²) ‖ N(prior_mean, prior_std²) ), elementwise: the caller sums over a run's parameters."""
    ratio = (std / prior_std).square()
    shift = ((mean - prior_mean) / prior_std).square()
    return 0.5 * (ratio + shift - 1.0 - torch.log(ratio))
