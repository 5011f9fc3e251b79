"""Every metric against another library or a hand computation, and a stack against its rows one by one."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from bayescal.evaluation import metrics as m

R, N, C, E = 5, 240, 4, 3
nan, inf = math.nan, math.inf


def stack(seed: int = 0, ties: bool = False, n: int = N, c: int = C) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions of R runs, of which none is perfect; with `ties` many confidences are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(R, n, c, generator=generator)
    labels = torch.randint(0, c, (R, n), generator=generator)
    logits.scatter_add_(-1, labels[..., None], torch.full((R, n, 1), 1.0))  # better than chance
    # Whole logits from a small set: few distinct rows of probabilities, so many exactly equal confidences.
    return ((logits * 1.5).round() if ties else logits * 2).softmax(-1), labels


def rows(probs, labels):
    """(probabilities, labels, confidence, correct) of each run as NumPy arrays."""
    for p, y in zip(probs.numpy(), labels.numpy(), strict=True):
        yield p, y, p.max(-1), p.argmax(-1) == y


def same(ours: torch.Tensor, theirs, atol: float = 1e-9) -> None:
    expected = torch.as_tensor(np.asarray(theirs), dtype=torch.float64)
    torch.testing.assert_close(ours.double(), expected, atol=atol, rtol=0, equal_nan=True)


both = pytest.mark.parametrize("ties", [False, True])


def test_tie_fixture_has_ties_between_correct_and_wrong():
    for _, _, conf, correct in rows(*stack(ties=True)):
        assert len(np.intersect1d(conf[correct], conf[~correct])) >= 3


def test_accuracy_and_confusion_matrix_match_sklearn():
    probs, labels = stack()
    same(m.accuracy(probs, labels), [sk.accuracy_score(y, p.argmax(-1)) for p, y, _, _ in rows(probs, labels)])
    wanted = [sk.confusion_matrix(y, p.argmax(-1), labels=range(C)) for p, y, _, _ in rows(probs, labels)]
    assert m.confusion_matrix(probs, labels).tolist() == np.array(wanted).tolist()


def test_accuracy_per_class_is_recall_and_nan_for_an_absent_class():
    probs, labels = stack()
    labels[labels == 2] = 1
    per_class = m.accuracy_per_class(probs, labels)
    present = [0, 1, 3]
    wanted = [sk.recall_score(y, p.argmax(-1), labels=present, average=None) for p, y, _, _ in rows(probs, labels)]
    same(per_class[:, present], wanted)
    assert per_class[:, 2].isnan().all()


def test_accuracy_per_group_and_worst_group():
    probs, labels = stack()
    groups = torch.arange(N) % 2 * 2  # groups 0 and 2; nobody in 1
    per_group = m.accuracy_per_group(probs, labels, groups, E)
    wanted = [[ok[groups == 0].mean(), nan, ok[groups == 2].mean()] for *_, ok in rows(probs, labels)]
    same(per_group, wanted)
    same(m.worst_group_accuracy(probs, labels, groups, E), np.nanmin(wanted, axis=1))
    per_run = groups.expand(R, N).clone()
    per_run[0] = 1  # a run whose images all come from the group that the others lack
    same(m.accuracy_per_group(probs, labels, per_run, E)[0], [nan, m.accuracy(probs, labels)[0], nan])


@both
@pytest.mark.parametrize("n_bins", [10, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_matches_torchmetrics(ties, n_bins, dtype):
    # Imported here: it takes longer than all other tests of this file together.
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = stack(ties=ties)
    probs = probs.to(dtype)
    # Confidences on bin edges, saturated ones (often wrong), and those just below 1 (all correct): there the
    # convention shows. 1 − 1e-10 is saturated in float32 alone.
    probs[:, :20] = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=dtype)
    probs[:, 20:40] = torch.tensor([0.0, 0.0, 1e-10, 1 - 1e-10], dtype=dtype)
    probs[:, 40:100] = 0.96 * torch.eye(C, dtype=dtype)[labels[:, 40:100]] + 0.01
    for i, edge in enumerate(torch.linspace(0, 1, n_bins + 1)[n_bins // 2 + 1 : -1].tolist()):
        probs[:, 100 + i] = torch.tensor([1 - edge, edge, 0, 0], dtype=dtype)
    wanted = [
        multiclass_calibration_error(p, y, num_classes=C, n_bins=n_bins, norm="l1").item()
        for p, y in zip(probs, labels, strict=True)
    ]
    same(m.ece(probs, labels, n_bins), wanted, atol=1e-6)


def test_reliability_bins_by_hand():
    probs = torch.tensor([[0.5, 0.5], [0.45, 0.55], [0.0, 1.0], [0.1, 0.9], [0.25, 0.75]]).double()
    labels = torch.tensor([0, 0, 1, 0, 1])
    bins = m.reliability_bins(probs, labels, n_bins=4)  # edges 0, ¼, ½, ¾, 1; each bin has its lower edge
    assert bins.count.tolist() == [0, 0, 2, 3]
    same(bins.confidence, [nan, nan, 0.525, (1 + 0.9 + 0.75) / 3], atol=1e-7)
    same(bins.accuracy, [nan, nan, 0.5, 2 / 3])


@both
def test_reliability_bins_hold_all_images(ties):
    probs, labels = stack(ties=ties)
    bins = m.reliability_bins(probs, labels)
    assert bins.count.sum(-1).tolist() == [N] * R
    same((bins.accuracy * bins.count).nansum(-1) / N, m.accuracy(probs, labels))
    same((bins.confidence * bins.count).nansum(-1) / N, m.confidence(probs).double().mean(-1), atol=1e-7)


def test_brier_and_nll():
    probs, labels = stack()
    wanted = [((p - np.eye(C)[y]) ** 2).sum(-1).mean() for p, y, _, _ in rows(probs, labels)]
    same(m.brier(probs, labels), wanted, atol=1e-6)
    wanted = [
        sk.log_loss(y, p / p.sum(-1, keepdims=True), labels=range(C)) for p, y, _, _ in rows(probs.double(), labels)
    ]
    same(m.nll(probs, labels), wanted, atol=1e-6)
    binary = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
    twice = 2 * sk.brier_score_loss([1, 1], [0.7, 0.4])
    same(m.brier(binary, torch.tensor([1, 1])), twice)


def test_brier_of_almost_perfect_predictions_is_not_negative():
    slip = torch.linspace(0, 1e-6, 500)[:, None]
    each = m.brier(torch.stack([1 - slip, slip], -1), torch.tensor([0]))  # 500 runs of one image
    assert each.amin() >= 0
    same(each, 2 * slip[:, 0].double() ** 2, atol=1e-6)


def test_nll_of_an_impossible_label_is_finite():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    same(m.nll(probs, torch.tensor([1, 1])), (-math.log(1e-12) + math.log(2)) / 2)


def test_entropy_and_mutual_information_by_hand():
    samples = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]).double()  # (S, N, C)
    entropies = m.predictive_entropy(samples)
    same(entropies, [[0, math.log(2)], [0, math.log(2)]])
    # Two sure samples that disagree are all ignorance; two unsure ones that agree are none.
    same(m.mutual_information(samples.mean(0), entropies.mean(0)), [math.log(2), 0])


def test_mutual_information_is_never_negative():
    probs, _ = stack()
    assert m.mutual_information(probs, m.predictive_entropy(probs) + 1e-7).amin() == 0


@both
def test_auroc_matches_sklearn(ties):
    probs, labels = stack(ties=ties)
    wanted = [sk.roc_auc_score(correct, conf) for *_, conf, correct in rows(probs, labels)]
    same(m.auroc_errors(probs, labels), wanted)


@both
def test_fpr_at_95_tpr_matches_sklearn(ties):
    probs, labels = stack(ties=ties)
    wanted = []
    for *_, conf, correct in rows(probs, labels):
        fpr, tpr, _ = sk.roc_curve(correct, conf, drop_intermediate=False)
        wanted.append(fpr[np.argmax(tpr >= 0.95)])
    same(m.fpr_at_95_tpr(probs, labels), wanted)


@both
def test_risk_coverage_curve_and_aurc(ties):
    probs, labels = stack(ties=ties)
    wanted = []
    for *_, conf, correct in rows(probs, labels):
        order = sorted(range(N), key=lambda i, conf=conf: -conf[i])  # Python's sort is stable
        wanted.append([np.mean([not correct[i] for i in order[:k]]) for k in range(1, N + 1)])
    curve = m.risk_coverage_curve(probs, labels)
    same(curve.coverage, np.arange(1, N + 1) / N)
    same(curve.risk, wanted)
    same(m.aurc(probs, labels), np.mean(wanted, axis=1))
    same(curve.risk[:, -1], 1 - m.accuracy(probs, labels))


def test_aurc_by_hand_and_order_of_ties():
    probs = torch.tensor([[0.4, 0.6], [0.4, 0.6], [0.1, 0.9]])
    # By confidence: third (right), first (wrong), second (right): risks 0, 1/2, 1/3.
    same(m.aurc(probs, torch.tensor([0, 1, 1])), (0 + 1 / 2 + 1 / 3) / 3)
    # The tied pair the other way round: risks 0, 0, 1/3.
    same(m.aurc(probs, torch.tensor([1, 0, 1])), (0 + 0 + 1 / 3) / 3)


def test_perfect_and_all_wrong_predictions():
    labels = torch.tensor([0, 1, 2, 3])
    perfect, wrong = torch.eye(4), torch.eye(4)[[1, 2, 3, 0]]
    probs = torch.stack([perfect, wrong])
    groups = torch.tensor([0, 0, 1, 1])
    same(m.accuracy(probs, labels), [1, 0])
    same(m.worst_group_accuracy(probs, labels, groups, 2), [1, 0])
    same(m.ece(probs, labels), [0, 1])
    same(m.brier(probs, labels), [0, 2])
    same(m.nll(probs, labels), [0, -math.log(1e-12)])
    same(m.aurc(probs, labels), [0, 1])
    same(m.auroc_errors(probs, labels), [nan, nan])
    same(m.fpr_at_95_tpr(probs, labels), [nan, nan])
    same(m.unsure_threshold(probs, labels), [1, inf])
    chosen = m.selective_accuracy(probs, labels, m.unsure_threshold(probs, labels))
    same(chosen.accuracy, [1, nan])
    same(chosen.accuracy_code, [1, nan])
    same(chosen.coverage, [1, 0])


# A confidence from a coarse grid (ties are common), and whether the answer is right.
answers = st.lists(st.tuples(st.integers(11, 19), st.booleans()), max_size=70)
# Shares as a person writes them; those such as 0.55, whose products with n round upwards, included.
shares = st.integers(1, 100).map(lambda percent: percent / 100)


def as_probs(pairs, unit: float = 1 / 20) -> tuple[torch.Tensor, torch.Tensor]:
    conf = torch.tensor([c * unit for c, _ in pairs], dtype=torch.float32)
    labels = torch.tensor([0 if right else 1 for _, right in pairs], dtype=torch.int64)
    return torch.stack([conf, 1 - conf], -1).reshape(-1, 2), labels


@settings(max_examples=100, deadline=None)
@given(pairs=answers, keep=shares)
def test_unsure_threshold_keeps_enough_and_is_the_largest_that_does(pairs, keep):
    probs, labels = as_probs(pairs)
    threshold = m.unsure_threshold(probs, labels, keep).item()
    right = probs[labels == 0, 0].tolist()
    wanted = Fraction(str(keep)) * len(right)  # exact, unlike keep * n
    if not right:
        assert threshold == inf
        return
    assert threshold in right
    assert sum(c >= threshold for c in right) >= wanted
    assert sum(c > threshold for c in right) < wanted  # any larger threshold loses all of these ties


def test_unsure_threshold_is_not_lowered_by_rounding():
    assert math.ceil(0.55 * 100) == 56  # floating point would keep one too many
    conf = 0.5 + torch.arange(1, 101) / 250
    probs, labels = torch.stack([conf, 1 - conf], -1), torch.zeros(100, dtype=torch.int64)
    assert (conf >= m.unsure_threshold(probs, labels, keep=0.55)).sum() == 55


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, nan])
def test_unsure_threshold_refuses_a_share_that_is_none(keep):
    with pytest.raises(ValueError, match="keep"):
        m.unsure_threshold(*stack(), keep)


@settings(max_examples=100, deadline=None)
@given(pairs=answers.filter(len), threshold=st.integers(10, 20))
def test_selective_accuracy_by_counting(pairs, threshold):
    probs, labels = as_probs(pairs)
    # Compare in float32, in which the confidences are: the grid's 0.6 is not float64's.
    bound = torch.tensor(threshold / 20, dtype=torch.float32)
    accepted = [ok for c, ok in pairs if c >= threshold]
    remaining = [ok for c, ok in pairs if c >= threshold or ok]  # what the released code divides by
    chosen = m.selective_accuracy(probs, labels, bound)
    same(chosen.coverage, len(accepted) / len(pairs))
    same(chosen.accuracy, np.mean(accepted) if accepted else nan)
    same(chosen.accuracy_code, np.mean(remaining) if remaining else nan)


def test_selective_accuracy_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.45, 0.55], [0.7, 0.3]])
    labels = torch.tensor([0, 1, 0, 0, 0])  # right, wrong, right, wrong, right
    chosen = m.selective_accuracy(probs, labels, 0.65)  # rejects one right and one wrong
    same(chosen.coverage, 3 / 5)
    same(chosen.accuracy, 2 / 3)
    same(chosen.accuracy_code, 3 / 4)


@both
def test_threshold_accepts_its_own_images_also_as_a_saved_number(ties):
    """The promise survives float32 → JSON → float: the image at the threshold is accepted."""
    probs, labels = stack(ties=ties)
    thresholds = m.unsure_threshold(probs, labels)
    for p, y, t in zip(probs, labels, thresholds, strict=True):
        right = p.argmax(-1) == y
        assert m.selective_accuracy(p[right], y[right], float(repr(t.item()))).coverage >= 0.95
        assert m.selective_accuracy(p[right], y[right], t.item() * (1 + 1e-6)).coverage < 0.95


def test_mean_and_standard_error():
    values = torch.tensor([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]])
    mean, error = m.mean_and_standard_error(values, dim=1)
    same(mean, [3, 5])
    same(error, [np.std([1, 2, 6], ddof=1) / math.sqrt(3), 0])
    same(m.mean_and_standard_error(values, dim=0)[1], [2, 1.5, 0.5])
    mean, error = m.mean_and_standard_error(values[:, :1], dim=1)
    same(mean, [1, 5])
    assert error.isnan().all()
    assert m.mean_and_standard_error(torch.tensor([1.0, nan]), dim=0)[0].isnan()


GROUPS = torch.arange(N) % E
ON_STACKS = {
    "accuracy": m.accuracy,
    "accuracy_per_class": m.accuracy_per_class,
    "accuracy_per_group": lambda p, y: m.accuracy_per_group(p, y, GROUPS[: p.shape[-2]], E),
    "worst_group_accuracy": lambda p, y: m.worst_group_accuracy(p, y, GROUPS[: p.shape[-2]], E),
    "confusion_matrix": m.confusion_matrix,
    "ece": m.ece,
    "reliability_bins": m.reliability_bins,
    "brier": m.brier,
    "nll": m.nll,
    "confidence": lambda p, y: m.confidence(p),
    "predictive_entropy": lambda p, y: m.predictive_entropy(p),
    "mutual_information": lambda p, y: m.mutual_information(p, m.predictive_entropy(p) / 2),
    "auroc_errors": m.auroc_errors,
    "fpr_at_95_tpr": m.fpr_at_95_tpr,
    "risk": lambda p, y: m.risk_coverage_curve(p, y).risk,
    "aurc": m.aurc,
    "unsure_threshold": m.unsure_threshold,
    "selective_accuracy": lambda p, y: m.selective_accuracy(p, y, 0.7),
}
every = pytest.mark.parametrize("metric", ON_STACKS.values(), ids=ON_STACKS)


def parts(result) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


@every
@both
def test_a_stack_equals_its_rows_one_by_one(metric, ties):
    probs, labels = stack(ties=ties)
    single_runs = [parts(metric(p, y)) for p, y in zip(probs, labels, strict=True)]
    for whole, *single in zip(parts(metric(probs, labels)), *single_runs, strict=True):
        assert whole.shape[0] == R
        same(whole, torch.stack(single), atol=1e-7)
        assert not torch.equal(whole[0], whole[1])  # else broadcasting one row would pass


@every
def test_leading_dimensions_broadcast(metric):
    probs, labels = stack()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = parts(metric(probs, labels[0]))  # labels (N,)
        spread = parts(metric(probs, labels[:1].expand(R, N)))
        deep = parts(metric(probs[None].expand(2, R, N, C), labels))  # (2, R)
        one_model = parts(metric(probs[0], labels))  # one model, several label sets
    flat = parts(metric(probs, labels))
    for a, b, c, d in zip(shared, spread, deep, flat, strict=True):
        same(a, b)
        same(c[0], d)
        same(c[1], d)
    repeated = parts(metric(probs[:1].expand(R, N, C), labels))
    for a, b in zip(one_model, repeated, strict=True):
        same(a.expand(b.shape), b)


@every
def test_a_diverged_run_neither_stops_nor_changes_the_others(metric):
    probs, labels = stack()
    broken = probs.clone()
    broken[2] = nan
    for ours, whole in zip(parts(metric(broken, labels)), parts(metric(probs, labels)), strict=True):
        same(ours[[0, 1, 3, 4]], whole[[0, 1, 3, 4]])
    assert m.accuracy(broken, labels)[2] == 0
    assert m.unsure_threshold(broken, labels)[2] == inf


@every
def test_no_images_is_not_an_error(metric):
    for result in parts(metric(torch.zeros(R, 0, C), torch.zeros(0, dtype=torch.int64))):
        assert result.shape[0] == R
    assert m.worst_group_accuracy(torch.zeros(R, 0, C), torch.zeros(0).long(), GROUPS[:0], E).isnan().all()


def test_results_are_float64_and_exact_for_counts():
    probs = torch.eye(2)[torch.tensor([0] * 9 + [1])]
    assert m.accuracy(probs, torch.zeros(10, dtype=torch.int64)).item() == 0.9
