"""Whether an image is like anything that was learned from, whatever the classifier makes of it.

    a(x) = mean cosine between x and its 5 nearest training images
    b(x) = largest cosine between x and the text feature of a class
    familiarity(x) = ( z(a(x)) + z(b(x)) ) / √2,      z(v) = (v − mean) / deviation

a is the k-nearest-neighbour score of Sun et al. (ICML 2022), with a mean over the neighbours where they take the k-th;
b is maximum concept matching (Ming et al., NeurIPS 2022) without its softmax. Means and deviations, and the threshold
below which an image is called unfamiliar, come from the training images: each compared with all others but itself, and
each compared with those of other environments alone, so that a new environment by itself is not unfamiliar.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NEIGHBOURS = 5
# Shares of training images that may be called unfamiliar: compared with all others, and with other environments alone.
FALSE_ALARMS, FALSE_ALARMS_ELSEWHERE = 0.05, 0.07
CALIBRATION = 10_000  # the most training images that mean, deviation and threshold are taken from
CHUNK = 4096  # images compared with all training images at once


@dataclass(frozen=True)
class Familiarity:
    """The training images and class texts to compare with, and what is usual."""

    images: Tensor  # (n, D), of length 1
    texts: Tensor  # (C, D), of length 1
    mean: Tensor  # (2,): of a and b
    deviation: Tensor  # (2,)
    threshold: float

    @classmethod
    def of(cls, features: Tensor, environments: Tensor, texts: Tensor) -> "Familiarity":
        """From training images (n, D) with their environments (n,), and class texts (C, D)."""
        images, texts = F.normalize(features, dim=-1), F.normalize(texts, dim=-1)
        alone = torch.arange(len(images), device=images.device)
        usual = scores = cls._scores(images, texts, alone)
        several = len(environments.unique()) > 1
        if several:
            usual = cls._scores(images, texts, environments)
        mean, deviation = usual.mean(0), usual.std(0).clamp(min=1e-6)
        threshold = combine(scores, mean, deviation).quantile(FALSE_ALARMS)
        if several:
            threshold = torch.minimum(threshold, combine(usual, mean, deviation).quantile(FALSE_ALARMS_ELSEWHERE))
        return cls(images, texts, mean, deviation, float(threshold))

    @staticmethod
    def _scores(images: Tensor, texts: Tensor, groups: Tensor) -> Tensor:
        """a and b (m, 2) of training images, each compared with those of other groups (n,); of very many, a sample."""
        chosen = torch.arange(len(images), device=images.device)[:: -(-len(images) // CALIBRATION)]
        parts = []
        for part in chosen.split(CHUNK // 4):
            same = groups[part, None] == groups[None, :]
            parts.append(torch.stack([nearest(images[part], images, same), best_text(images[part], texts)], -1))
        return torch.cat(parts)

    def __call__(self, features: Tensor) -> Tensor:
        """Familiarity (N,) of images (N, D)."""
        parts = []
        for chunk in F.normalize(features, dim=-1).split(CHUNK):
            scores = torch.stack([nearest(chunk, self.images), best_text(chunk, self.texts)], -1)
            parts.append(combine(scores, self.mean, self.deviation))
        return torch.cat(parts) if parts else features.new_empty(0)

    def to(self, device: torch.device) -> "Familiarity":
        parts = (value.to(device) for value in (self.images, self.texts, self.mean, self.deviation))
        return Familiarity(*parts, threshold=self.threshold)


def nearest(queries: Tensor, images: Tensor, leave_out: Tensor | None = None) -> Tensor:
    """Mean cosine (N,) of queries (N, D) with their nearest images (n, D); `leave_out` (N, n): pairs not to count.

    With fewer than five to count, the mean is over these; with none, NaN.
    """
    cosines = queries @ images.T
    if leave_out is not None:
        cosines = cosines.masked_fill(leave_out, -torch.inf)
    found = cosines.topk(min(NEIGHBOURS, len(images)), dim=1).values
    return found.masked_fill(found == -torch.inf, torch.nan).nanmean(1)


def best_text(queries: Tensor, texts: Tensor) -> Tensor:
    """Largest cosine (N,) with a class text (C, D)."""
    return (queries @ texts.T).amax(1)


def combine(scores: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Of scores (N, 2), in deviations from the mean: (N,)."""
    return ((scores - mean) / deviation).sum(-1) / 2**0.5
