"""What a stack of predictions is worth: accuracy, calibration, ranking of errors, and what "unsure" buys.

Shapes: `probs (R, N, C)` are predicted probabilities of R runs for N images and C classes; `labels (N,)`, or
`(R, N)` where runs see different images. A metric gives one number per run, `(R,)`, unless it says otherwise.
Leading dimensions broadcast: `(N, C)` gives a scalar and `(A, B, N, C)` gives `(A, B)`. Nothing mixes runs.

Conventions: fractions, not percentages. Results are float64, so that a record reads 0.9 and not 0.8999999762.
Where a question has no answer (accuracy of a class without images) the answer is NaN, never a made-up number.
A prediction that is not a number counts as wrong, so a run that diverged cannot win a selection.

By hand, because torchmetrics and scikit-learn score one run at a time; the tests compare with them.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Bins(NamedTuple):
    """What a reliability diagram shows, each `(R, n_bins)`; NaN where a bin is empty."""

    count: Tensor
    confidence: Tensor
    accuracy: Tensor


class RiskCoverage(NamedTuple):
    """`risk (R, N)`: error rate among the `coverage (N,)` = k/N most confident images, k = 1 … N."""

    coverage: Tensor
    risk: Tensor


class Selective(NamedTuple):
    """Accuracy of a classifier that may say "unsure"; each `(R,)`. See `selective_accuracy`."""

    accuracy: Tensor
    accuracy_code: Tensor
    coverage: Tensor


def confidence(probs: Tensor) -> Tensor:
    """How sure the classifier is of its own answer: max_c p_c. `(R, N)`."""
    return probs.amax(-1)


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Share of images whose most probable class is the true one; the first class wins a tie. `(R,)`."""
    return _correct(probs, labels).mean(-1, dtype=torch.float64)


def accuracy_per_class(probs: Tensor, labels: Tensor) -> Tensor:
    """Accuracy on the images of each class (its recall). `(R, C)`, NaN for a class without images."""
    return accuracy_per_group(probs, labels, labels, probs.shape[-1])


def accuracy_per_group(probs: Tensor, labels: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Accuracy inside each group, for instance each environment.

    `groups (N,)` or `(R, N)` holds numbers in 0 … n_groups−1. `(R, n_groups)`, NaN for an empty group.
    """
    correct = _correct(probs, labels)
    return _sum_by(groups, correct, n_groups) / _sum_by(groups, torch.ones_like(correct), n_groups)


def worst_group_accuracy(probs: Tensor, labels: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Accuracy in the group where it is lowest, among the groups that have images. `(R,)`.

    The average over environments can hide one in which the classifier is useless; this number cannot
    (Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020).
    """
    per_group = accuracy_per_group(probs, labels, groups, n_groups)
    worst = per_group.nan_to_num(nan=torch.inf).amin(-1)
    return worst.masked_fill(worst.isinf(), torch.nan)


def confusion_matrix(probs: Tensor, labels: Tensor) -> Tensor:
    """Number of images of class i (row) that were called class j (column). `(R, C, C)`, int64."""
    n_classes = probs.shape[-1]
    cells = labels * n_classes + probs.argmax(-1)
    counts = _sum_by(cells, torch.ones_like(cells), n_classes**2)
    return counts.long().unflatten(-1, (n_classes, n_classes))


def ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error: by how much confidence and accuracy differ on average. `(R,)`, 0 is best.

    Images are sorted into `n_bins` equal-width bins of confidence; Σ_b (n_b/N)·|accuracy_b − confidence_b|
    (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017). Binning is torchmetrics': a bin
    contains its lower edge; a confidence of exactly 1 is a bin of its own (saturated softmaxes do fill it).
    """
    count, conf, correct = _bin_sums(probs, labels, n_bins)
    # (n_b/N)·|c_b/n_b − s_b/n_b| = |c_b − s_b|/N, so an empty bin needs no special case.
    return (correct - conf).abs().sum(-1) / count.sum(-1)


def reliability_bins(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Bins:
    """Count, mean confidence and accuracy of each confidence bin, for a reliability diagram. `(R, n_bins)`.

    Bins as in `ece`, except that a confidence of exactly 1 joins the last bin: a diagram has no room at 1.
    """
    sums = _bin_sums(probs, labels, n_bins)
    count, conf, correct = (torch.cat([s[..., :-2], s[..., -2:].sum(-1, keepdim=True)], -1) for s in sums)
    return Bins(count.long(), conf / count, correct / count)


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance between the predicted and the true distribution. `(R,)`, 0 is best, 2 is worst.

    mean over images of Σ_c (p_c − [c = y])² (Brier, 1950; the multi-class form, twice the binary one).
    """
    # Σ_c p_c² − 2 p_y + 1: the same without a one-hot tensor as large as the predictions.
    squares = torch.linalg.vector_norm(probs, dim=-1).double().square()
    return (squares - 2 * _prob_of_label(probs, labels) + 1).mean(-1)


def nll(probs: Tensor, labels: Tensor, eps: float = 1e-12) -> Tensor:
    """Negative log-likelihood, −mean log p_y, in nats. `(R,)`, 0 is best; log C is what guessing costs.

    p_y is kept above `eps`, so a single confident mistake costs at most −log eps = 27.6 instead of infinity.
    """
    return -_prob_of_label(probs, labels).clamp_min(eps).log().mean(-1)


def predictive_entropy(probs: Tensor) -> Tensor:
    """Total uncertainty about each image in nats: −Σ_c p_c log p_c. `(R, N)`, 0 (sure) to log C (no idea)."""
    # float64 after the sum: before it, the largest tensor of all would be copied at twice its size.
    return torch.special.entr(probs).sum(-1).double()


def mutual_information(probs_mean: Tensor, expected_entropy: Tensor) -> Tensor:
    """The part of the uncertainty that more training data would remove: H(E_φ p) − E_φ H(p). `(R, N)`.

    `probs_mean (R, N, C)` is the mean of the predictions over posterior samples, `expected_entropy (R, N)` the
    mean of their entropies. 0 when all samples agree (Houlsby et al., "Bayesian Active Learning for
    Classification and Preference Learning", 2011).
    """
    # Not negative by Jensen's inequality; rounding can make it −1e-8, which would puzzle a reader.
    return (predictive_entropy(probs_mean) - expected_entropy).clamp_min(0)


def auroc_errors(probs: Tensor, labels: Tensor) -> Tensor:
    """Probability that a correct answer is held with more confidence than a wrong one. `(R,)`, 0.5 is a coin.

    The area under the ROC curve of confidence as a detector of correct answers; equal confidences count one
    half. NaN when every answer is correct or every answer is wrong (Hendrycks & Gimpel, "A Baseline for
    Detecting Misclassified and Out-of-Distribution Examples in Neural Networks", ICLR 2017).
    """
    conf, correct = _confidence_and_correct(probs, labels)
    ordered = conf.sort(-1).values
    # Mann–Whitney: the sum of the correct ones' ranks. A rank among ties is the mean of the first and the
    # last; twice the rank is a whole number, so the sum is exact.
    twice_rank = torch.searchsorted(ordered, conf) + torch.searchsorted(ordered, conf, right=True) + 1
    n_correct = correct.sum(-1)
    n_wrong = correct.shape[-1] - n_correct
    twice_wins = (twice_rank * correct).sum(-1) - n_correct * (n_correct + 1)
    return twice_wins.double() / (2 * n_correct * n_wrong)


def fpr_at_95_tpr(probs: Tensor, labels: Tensor) -> Tensor:
    """Share of the wrong answers that pass when 95 % of the correct ones have to pass. `(R,)`, 0 is best.

    The threshold is `unsure_threshold` of the same images. NaN when there are no wrong or no correct answers.
    """
    conf, correct = _confidence_and_correct(probs, labels)
    passed = conf >= _kept_threshold(conf, correct, keep=0.95)[..., None]
    rate = (passed & ~correct).sum(-1).double() / (~correct).sum(-1)
    return rate.masked_fill(~correct.any(-1), torch.nan)


def risk_coverage_curve(probs: Tensor, labels: Tensor) -> RiskCoverage:
    """Error rate among the k most confident images, for every k: what refusing to answer would buy.

    Images of equal confidence keep the order in which they came. coverage `(N,)`, risk `(R, N)`
    (El-Yaniv & Wiener, JMLR 2010).
    """
    conf, correct = _confidence_and_correct(probs, labels)
    order = torch.argsort(conf, dim=-1, descending=True, stable=True)
    answered = torch.arange(1, conf.shape[-1] + 1, device=conf.device, dtype=torch.float64)
    errors = (~correct).gather(-1, order).cumsum(-1)
    return RiskCoverage(answered / conf.shape[-1], errors / answered)


def aurc(probs: Tensor, labels: Tensor) -> Tensor:
    """Area under the risk–coverage curve: the mean of its N risks. `(R,)`, 0 is best.

    Rewards few errors, and errors made with low confidence (Geifman, Uziel & El-Yaniv, "Bias-Reduced Uncertainty
    Estimation for Deep Neural Classifiers", ICLR 2019). Ties as in `risk_coverage_curve`.
    """
    return risk_coverage_curve(probs, labels).risk.mean(-1)


def unsure_threshold(probs: Tensor, labels: Tensor, keep: float = 0.95) -> Tensor:
    """The confidence below which to say "unsure", from validation images. `(R,)`, dtype of `probs`.

    The (1−keep) quantile of the confidence of the n correctly classified images: the largest threshold at
    which at least `keep`·n of them are accepted (confidence ≥ threshold). It is one of the n confidences, the
    (n−⌈keep·n⌉+1)-th smallest; without interpolation the promise holds exactly, for every n and with ties.
    Without a single correct validation image nothing can be promised: +inf, "unsure" about everything.
    """
    return _kept_threshold(*_confidence_and_correct(probs, labels), keep)


def selective_accuracy(probs: Tensor, labels: Tensor, threshold: Tensor | float) -> Selective:
    """Accuracy when images with confidence < threshold are answered "unsure". `threshold (R,)` or one number.

    - accuracy, Acc*: correct among the accepted; NaN when nothing is accepted.
    - accuracy_code, Acc*(code): correct / (N − rejected wrong), what the method's released code computes. A
      rejected image is left out if it was wrong but still counts as correct if it was right, so this is never
      below Acc* or plain accuracy; only for comparison with published numbers. NaN when nothing is left.
    - coverage: share of images accepted.
    """
    conf, correct = _confidence_and_correct(probs, labels)
    # In float64 both sides compare exactly: a threshold taken from float32 confidences accepts its own image.
    bound = torch.as_tensor(threshold, dtype=torch.float64, device=conf.device)[..., None]
    accepted = conf.double() >= bound
    n_accepted = accepted.sum(-1).double()
    rejected_wrong = (~accepted & ~correct).sum(-1)
    n_images = conf.shape[-1]
    return Selective(
        accuracy=(accepted & correct).sum(-1) / n_accepted,
        accuracy_code=correct.sum(-1).double() / (n_images - rejected_wrong),
        coverage=accepted.mean(-1, dtype=torch.float64),
    )


def mean_and_standard_error(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean over `dim` (seeds) and its standard error s/√n, s with n−1 in the denominator.

    One value has no spread to measure: its standard error is NaN. A NaN among the values gives NaN: a failed
    seed is for the caller to leave out, visibly.
    """
    values = values.double()
    n = values.shape[dim]
    mean = values.mean(dim, keepdim=True)
    variance = (values - mean).square().sum(dim) / (n - 1)
    return mean.squeeze(dim), (variance / n).sqrt()


def _correct(probs: Tensor, labels: Tensor) -> Tensor:
    """Which answers are right, `(R, N)` bool."""
    return _confidence_and_correct(probs, labels)[1]


def _confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and rightness of each answer, both `(R, N)`."""
    conf, answer = probs.max(-1)
    # max takes NaN for the largest number; without the second condition a diverged run scores like a guess.
    correct = (answer == labels) & ~conf.isnan()
    return conf.expand(correct.shape).contiguous(), correct


def _prob_of_label(probs: Tensor, labels: Tensor) -> Tensor:
    """p_y of each image, `(R, N)` float64."""
    # Not torch.broadcast_shapes: its first call imports a symbolic-algebra package and takes over a second.
    labels, _ = torch.broadcast_tensors(labels, probs[..., 0])
    chosen = probs.expand(*labels.shape, -1).gather(-1, labels[..., None])
    return chosen.squeeze(-1).double()


def _sum_by(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Sum of `values (R, N)` in each of `size` groups, `(R, size)` float64; both arguments broadcast."""
    index, values = torch.broadcast_tensors(index, values)
    sums = torch.zeros(*values.shape[:-1], size, dtype=torch.float64, device=values.device)
    return sums.scatter_add_(-1, index, values.double())


def _bin_sums(probs: Tensor, labels: Tensor, n_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count, sum of confidences and number correct of each bin, `(R, n_bins + 1)`; the last is exactly 1."""
    conf, correct = _confidence_and_correct(probs, labels)
    # float32 edges, as torchmetrics has them: a float32 0.7 lies below the float64 edge 0.7.
    conf = conf.float()
    edges = torch.linspace(0, 1, n_bins + 1, device=conf.device)
    # Rounding leaves some softmaxes at 1.0000001, and NaN sorts above every edge: the last bin takes both.
    bins = (torch.bucketize(conf, edges, right=True) - 1).clamp(0, n_bins)
    count, confidences, right = (_sum_by(bins, v, n_bins + 1) for v in (torch.ones_like(conf), conf, correct))
    return count, confidences, right


def _kept_threshold(conf: Tensor, correct: Tensor, keep: float) -> Tensor:
    """Largest t with at least ⌈keep·n⌉ of the n correct confidences ≥ t, `(R,)`; +inf where n = 0."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep is the share of correct answers to accept, in (0, 1]; got {keep}")
    # Wrong answers go to the end as +inf; one more +inf makes the case n = 0, or N = 0, an ordinary look-up.
    candidates = torch.nn.functional.pad(conf.masked_fill(~correct, torch.inf), (0, 1), value=torch.inf)
    ordered = candidates.sort(-1).values
    n = correct.sum(-1)
    # 0.55·100 comes out as 55.00000000000001, and ⌈·⌉ of that would keep one image too many.
    needed = (n.double() * keep * (1 - 1e-12)).ceil().long()
    return ordered.gather(-1, (n - needed)[..., None]).squeeze(-1)
