"""Which unlabelled images to label next: those that stand for many that the model is unsure of.

    next = argmax over x of  Σ_i w_i · ( k(x, i) − max over labelled l of k(l, i) )₊
    k(x, i) = exp( (cos(x, i) − 1) / τ )

i runs over the unlabelled images, w_i is the square root of what the model does not know about i, and what has been
suggested counts as labelled: greedy facility location. One sum has all that should count: uncertainty (w), density (an
image is worth the images it stands for), spread (the second of two alike adds nothing) and unfamiliarity (far from all
that is labelled, everything is to be gained). τ and the square root were chosen on two development sets
(docs/labelling.md).

Nemhauser, Wolsey & Fisher, "An analysis of approximations for maximizing submodular set functions", 1978; for
labelling: Wei, Iyer & Bilmes, "Submodularity in data subset selection and active learning", ICML 2015.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.estimator.prediction import Prediction

WIDTH = 0.05  # τ
POWER = 0.5  # of the uncertainty
FLOOR = 0.01  # of the mean uncertainty: an image that the model is sure of counts a little
CANDIDATES, TARGETS = 8192, 4096  # of more images, so many may be suggested and stand for all, evenly spread
CHUNK = 1024


@dataclass(frozen=True)
class Suggestions:
    """Images to label, the most useful first."""

    images: np.ndarray  # (k,) numbers among those given
    stands_for: np.ndarray  # (k,) how many of all images are more like it than like any other labelled or suggested one


@dataclass(frozen=True)
class Sample:
    """The images that are looked at: of few all, of very many some, evenly spread. Numbers are ascending."""

    candidates: np.ndarray  # (C,) those that may be suggested
    targets: np.ndarray  # (T,) those that stand for all
    total: int  # how many they stand for

    @classmethod
    def of(cls, first: np.ndarray, n: int) -> "Sample":
        """From N images, of which those marked by `first` (N,) are to be suggested before others; n are wanted."""
        most = max(n, CANDIDATES // 2)
        parts = [_spread(np.flatnonzero(part), most) for part in (first, ~first)]
        return cls(np.sort(np.concatenate(parts)), _spread(np.arange(len(first)), TARGETS), len(first))

    @property
    def images(self) -> np.ndarray:
        return np.union1d(self.candidates, self.targets)

    def within(self, images: np.ndarray) -> "Sample":
        """The same where only `images` (K,) of these, ascending, can be read, as numbers into them."""
        candidates, targets = (np.flatnonzero(np.isin(images, own)) for own in (self.candidates, self.targets))
        return Sample(candidates, targets, round(self.total * len(images) / max(1, len(self.images))))


def unknown(prediction: Prediction) -> Tensor:
    """What a model does not know about N images: mutual information and disagreement; without either, the entropy."""
    found = torch.from_numpy(prediction.mutual_information + prediction.disagreement).float()
    return found if bool((found > 1e-6).any()) else torch.from_numpy(np.array(prediction.entropy)).float()


def suggest(
    features: Tensor,
    uncertainty: Tensor,
    labelled: Tensor,
    n: int,
    first: np.ndarray | None = None,
    sample: Sample | None = None,
) -> Suggestions:
    """n of N unlabelled images (N, D), with what is not known of each (N,), beside labelled ones (m, D).

    `first` (N,) marks images of environments that the model has not seen: they are suggested before the others.
    `sample` says what these images stand for, where they have been chosen from more.
    """
    unit, known = F.normalize(features.float(), dim=-1), F.normalize(labelled.float(), dim=-1)
    marked = np.zeros(len(unit), dtype=bool) if first is None else np.asarray(first, dtype=bool)
    sample = sample or Sample.of(marked, n)
    candidates, targets, n = sample.candidates, sample.targets, min(n, len(sample.candidates))
    weights = uncertainty[targets].float().clamp(min=0)
    weights = (weights / weights.mean().clamp(min=1e-12) + FLOOR) ** POWER
    kernel = _kernel(unit[candidates], unit[targets])  # (C, T)
    best = _nearest(unit[targets], known)
    allowed = torch.from_numpy(marked[candidates]) if marked.any() else torch.ones(len(candidates), dtype=torch.bool)
    chosen: list[int] = []
    owner = torch.full((len(targets),), -1)
    for rank in range(n):
        if not bool(allowed.any()):  # all unseen environments are labelled: now the others
            allowed = torch.ones(len(candidates), dtype=torch.bool)
            allowed[chosen] = False
        gains = _gains(kernel, best, weights).masked_fill(~allowed, -1)
        one = int(gains.argmax())
        chosen.append(one)
        allowed[one] = False
        owner[kernel[one] > best] = rank
        best = torch.maximum(best, kernel[one])
    counts = torch.bincount(owner[owner >= 0], minlength=n).numpy() * sample.total / max(1, len(targets))
    return Suggestions(candidates[chosen], np.maximum(1, counts.round()).astype(np.int64))


def _spread(rows: np.ndarray, most: int) -> np.ndarray:
    """Rows, or of more than `most` that many, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def _kernel(one: Tensor, two: Tensor) -> Tensor:
    return ((one @ two.T - 1) / WIDTH).exp()


def _nearest(images: Tensor, known: Tensor) -> Tensor:
    """How well each image (T, D) is stood for by a labelled one: (T,)."""
    if not len(known):
        return torch.zeros(len(images))
    return torch.cat([_kernel(part, known).amax(1) for part in images.split(CHUNK)])


def _gains(kernel: Tensor, best: Tensor, weights: Tensor) -> Tensor:
    """What each candidate adds: (C,)."""
    return torch.cat([(part - best).clamp(min=0) @ weights for part in kernel.split(CHUNK)])
