"""Whether an image is like anything that was learned from, whatever the classifier makes of it.

    a(x) = mean cosine between x and its 5 nearest training images
    b(x) = largest cosine between x and the text feature of a class
    c(x) = largest cosine between x and a picture of noise
    d(x) = how far the largest cosine between x and any other word is above b(x); 0 where it is not
    familiarity(x) = min( (z(a(x)) + z(b(x))) / √2, −z(d(x)) ) − max(0, z(c(x)) − 2),      z(v) = (v − mean) / deviation

a is the k-nearest-neighbour score of Sun et al. (ICML 2022), with a mean over the neighbours where they take the k-th;
b is maximum concept matching (Ming et al., NeurIPS 2022) without its softmax. c knows blank, blurred and noisy images;
it counts only where an image is more like noise than nearly all training images are, because to be unlike noise makes
nothing familiar. d knows what has another name: of the words that the text tower knows, the thousand nearest to the
class names stand for what else an image might show, as negative labels do (Jiang et al., ICLR 2024, who take the
farthest of a lexicon). An image has to pass both: like what was learned from, and not called by another word more than
training images are. Means and deviations, and the threshold below which an image is called unfamiliar, come from the
training images: each compared with all others but itself, and each compared with those of other environments alone, so
that a new environment by itself is not unfamiliar. One environment cannot tell how another differs: there, fewer of its
own images may be called unfamiliar.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine.linear import times_rows

NEIGHBOURS = 5
# Shares of training images that may be called unfamiliar: compared with all others, and with other environments alone.
FALSE_ALARMS, FALSE_ALARMS_ELSEWHERE = 0.05, 0.06
FALSE_ALARMS_ALONE = 0.02  # compared with all others, where there is one environment
WORDS = 1000  # other words that an image is compared with: those nearest to a class name
SMALLEST_GAP = 0.01  # deviation of d at least: where no training image has a better word, a trace of one is no alarm
LIKE_NOISE = 2.0  # deviations by which an image has to be more like noise than usual
CALIBRATION = 10_000  # the most training images that mean, deviation and threshold are taken from
WORD = 3  # the place of d among the scores
CHUNK = 4096  # images compared with all training images at once


@dataclass(frozen=True)
class Familiarity:
    """The training images, class texts, noise and other words to compare with, and what is usual."""

    images: Tensor  # (n, D), of length 1
    texts: Tensor  # (C, D), of length 1
    mean: Tensor  # (4,): of a, b, c and d
    deviation: Tensor  # (4,)
    threshold: float
    noise: Tensor | None = None  # (m, D), of length 1; None: there is no c and no d, and mean and deviation are (2,)
    words: Tensor | None = None  # (w, D), of length 1; None: there is no d, and mean and deviation are (3,)

    @classmethod
    def of(
        cls,
        features: Tensor,
        environments: Tensor,
        texts: Tensor,
        noise: Tensor | None = None,
        words: Tensor | None = None,
    ) -> "Familiarity":
        """What is usual among training images.

        Images (n, D) with their environments (n,); class texts (C, D); pictures of noise (m, D); and, beside noise,
        every word that there is (W, D).
        """
        images, alone = F.normalize(features, dim=-1), torch.arange(len(features), device=features.device)
        texts, noise = F.normalize(texts, dim=-1), None if noise is None else F.normalize(noise, dim=-1)
        words = (
            None
            if words is None or noise is None or not len(words)
            else nearest_words(F.normalize(words, dim=-1), texts)
        )
        unset = features.new_empty(0)
        bare = cls(images, texts, unset, unset, -torch.inf, noise, words)
        usual = scores = bare._usual(alone)
        several = len(environments.unique()) > 1
        if several:
            usual = bare._usual(environments)
        mean, deviation = usual.mean(0), usual.std(0).clamp(min=1e-6)
        if words is not None:
            deviation[WORD] = deviation[WORD].clamp(min=SMALLEST_GAP)
        threshold = _lowest(combine(scores, mean, deviation), FALSE_ALARMS if several else FALSE_ALARMS_ALONE)
        if several:
            threshold = torch.minimum(threshold, _lowest(combine(usual, mean, deviation), FALSE_ALARMS_ELSEWHERE))
        return replace(bare, mean=mean, deviation=deviation, threshold=float(threshold))

    def _usual(self, groups: Tensor) -> Tensor:
        """Scores (m, 4) of training images, each compared with those of other groups (n,); of very many, a sample."""
        images = self.images
        chosen = torch.arange(len(images), device=images.device)[:: -(-len(images) // CALIBRATION)]
        parts = chosen.split(CHUNK // 4)
        return torch.cat([self.scores(images[part], groups[part, None] == groups[None, :]) for part in parts])

    def scores(self, directions: Tensor, leave_out: Tensor | None = None) -> Tensor:
        """a, b, c and d (N, 4) of images (N, D) of length 1; `leave_out` as in `nearest`."""
        text = closest(directions, self.texts)
        found = [nearest(directions, self.images, leave_out), text]
        if self.noise is not None:
            found.append(closest(directions, self.noise))
        if self.words is not None:
            found.append((closest(directions, self.words) - text).clamp(min=0))
        return torch.stack(found, -1)

    def of_directions(self, directions: Tensor) -> Tensor:
        """Familiarity (N,) of images (N, D) of length 1."""
        return combine(self.scores(directions), self.mean, self.deviation)

    def __call__(self, features: Tensor) -> Tensor:
        """Familiarity (N,) of images (N, D)."""
        parts = [self.of_directions(chunk) for chunk in F.normalize(features, dim=-1).split(CHUNK)]
        return torch.cat(parts) if parts else features.new_empty(0)

    def to(self, device: torch.device) -> "Familiarity":
        given = {name: getattr(self, name) for name in ("images", "texts", "mean", "deviation", "noise", "words")}
        return replace(self, **{name: None if value is None else value.to(device) for name, value in given.items()})


def nearest(queries: Tensor, images: Tensor, leave_out: Tensor | None = None) -> Tensor:
    """Mean cosine (N,) of queries (N, D) with their nearest images (n, D); `leave_out` (N, n): pairs not to count.

    With fewer than five to count, the mean is over these; with none, NaN.
    """
    cosines = times_rows(queries, images)
    if leave_out is not None:
        cosines = cosines.masked_fill(leave_out, -torch.inf)
    found = cosines.topk(min(NEIGHBOURS, len(images)), dim=1).values
    return found.masked_fill(found == -torch.inf, torch.nan).nanmean(1)


def closest(queries: Tensor, references: Tensor) -> Tensor:
    """Largest cosine (N,) of queries (N, D) with references (m, D)."""
    return times_rows(queries, references).amax(1)


def nearest_words(words: Tensor, texts: Tensor) -> Tensor:
    """The thousand of all words (W, D) that are nearest to a class text (C, D), all of length 1: (w, D)."""
    chosen = torch.cat([closest(part, texts) for part in words.split(CHUNK)]).topk(min(WORDS, len(words))).indices
    return words[chosen.sort().values]


def _lowest(values: Tensor, share: float) -> Tensor:
    """The value below which at most this share of them lies: of few, none."""
    return values.quantile(share, interpolation="lower")


def combine(scores: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Familiarity (N,) from scores (N, 2, 3 or 4)."""
    z = (scores - mean) / deviation
    familiar = z[..., :2].sum(-1) / 2**0.5
    if z.shape[-1] > WORD:
        familiar = torch.minimum(familiar, -z[..., WORD])
    return familiar if z.shape[-1] == 2 else familiar - (z[..., 2] - LIKE_NOISE).clamp(min=0)
