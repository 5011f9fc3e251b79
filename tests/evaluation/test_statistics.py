"""The signed-rank test against scipy and against every sign pattern; bootstrap intervals against scipy's."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayescal.evaluation import metrics
from bayescal.evaluation.statistics import (
    bootstrap_interval,
    mean_and_error,
    rank_sum_probabilities,
    student_t,
    twice_mid_ranks,
    wilcoxon,
)


def by_enumeration(differences) -> tuple[float, float]:
    """Statistic and two-sided p, from all 2ⁿ ways to give the ranks a sign."""
    differences = np.array([d for d in differences if d != 0])
    ranks = stats.rankdata(np.abs(differences))
    observed = min(ranks[differences > 0].sum(), ranks[differences < 0].sum())
    signs = np.array(list(itertools.product([0, 1], repeat=len(ranks))))
    sums = signs @ ranks
    return observed, min(1.0, 2 * float((sums <= observed).mean()))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 10, 25, 50])
@pytest.mark.parametrize("shift", [0.0, 0.4, 3.0])
def test_without_ties_it_is_scipys_exact_test(n, shift):
    generator = np.random.default_rng(n)
    a, b = generator.normal(shift, size=n), generator.normal(size=n)
    ours, theirs = wilcoxon(a, b), stats.wilcoxon(a, b, method="exact")
    assert (ours.n, ours.dropped, ours.why) == (n, 0, "")
    assert ours.statistic == theirs.statistic
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert wilcoxon(b, a) == ours  # two-sided: it does not matter who comes first


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=10))
def test_with_ties_and_zeros_it_is_the_enumeration_of_all_signs(differences):
    """Small whole numbers: nearly every list has equal differences, many have zeros."""
    ours = wilcoxon(differences, [0] * len(differences))
    assert ours.dropped == differences.count(0)
    assert ours.n == len(differences) - ours.dropped
    if ours.n:
        statistic, p = by_enumeration(differences)
        assert ours.statistic == statistic
        assert ours.p == pytest.approx(p, rel=1e-12)
        assert ours.smallest_p <= ours.p
        same_sign = wilcoxon(np.abs(differences), [0] * len(differences))
        assert same_sign.p == ours.smallest_p == 2 / 2**ours.n  # ties do not move the floor


def test_six_data_sets_cannot_say_more_than_0_03():
    """The paper's first and third row: Bayes-CAL against CoOp, better on all six data sets."""
    bayes_cal = [98.33, 69.00, 91.82, 78.06, 47.88, 74.20]
    coop = [95.92, 55.21, 91.47, 72.79, 9.50, 62.39]
    result = wilcoxon(bayes_cal, coop)
    assert (result.n, result.statistic) == (6, 0.0)
    assert result.p == result.smallest_p == 0.03125


def test_equal_differences_tie_whatever_their_last_bit():
    a, b = [0.9, 0.8, 0.3, 0.5], [0.8, 0.7, 0.4, 0.2]  # 0.1, 0.1, −0.1, 0.3
    assert 0.9 - 0.8 != 0.8 - 0.7  # what floating point says
    ours = wilcoxon(a, b)
    statistic, p = by_enumeration([1, 1, -1, 3])
    assert (ours.statistic, ours.p) == (statistic, pytest.approx(p))
    assert wilcoxon([100 * x for x in a], [100 * x for x in b]) == ours  # percentages: the same
    rounded = wilcoxon([0.1 + 0.2, 0.5], [0.3, 0.4])
    assert (rounded.n, rounded.dropped) == (1, 1)


def test_without_a_difference_there_is_no_p_but_a_reason():
    nothing = wilcoxon([1.0, 2.0], [1.0, 2.0])
    assert (nothing.n, nothing.dropped) == (0, 2)
    assert math.isnan(nothing.p)
    assert math.isnan(nothing.smallest_p)
    assert nothing.why == "no two values differ"
    assert wilcoxon([], []).why == "there are no pairs"


def test_what_is_no_pair_is_refused():
    with pytest.raises(ValueError, match="one length"):
        wilcoxon([1, 2], [1])
    with pytest.raises(ValueError, match="leave it out"):
        wilcoxon([1, math.nan], [1, 2])


def test_mid_ranks_are_scipys():
    values = np.array([3.0, 1.0, 3.0, 2.0, 3.0, 1.0])
    assert (twice_mid_ranks(values) == 2 * stats.rankdata(values)).all()


def test_rank_sums_have_a_distribution():
    probability = rank_sum_probabilities([1, 2, 3])
    assert probability.tolist() == [k / 8 for k in (1, 1, 1, 2, 1, 1, 1)]
    assert rank_sum_probabilities(range(1, 101)).sum() == pytest.approx(1.0, rel=1e-12)


def test_one_level_interval_is_scipys():
    values = np.random.default_rng(1).normal(size=12)
    for level in (0.95, 0.8):
        theirs = stats.bootstrap(
            (values,), np.mean, confidence_level=level, n_resamples=10_000, method="percentile",
            rng=np.random.default_rng(99),
        ).confidence_interval  # fmt: skip
        assert bootstrap_interval(values, level) == pytest.approx(tuple(theirs), abs=0.02)  # other random numbers
        same = stats.bootstrap(
            (values,), np.mean, confidence_level=level, n_resamples=500, method="percentile",
            rng=np.random.default_rng(3),
        ).confidence_interval  # fmt: skip
        assert bootstrap_interval(values, level, resamples=500, seed=3) == pytest.approx(tuple(same), rel=1e-12)
    assert bootstrap_interval(values[None]) == bootstrap_interval(values)  # one environment: seeds alone


def test_two_levels_have_the_variance_of_both():
    """Var of a draw's mean = Var(environment means)/E + mean Var(seeds)/(E·S), both with n in the denominator."""
    table = np.random.default_rng(2).normal(size=(4, 3)) + 2 * np.arange(4)[:, None]
    sd = math.sqrt(table.mean(1).var() / 4 + table.var(1).mean() / 12)
    low, high = bootstrap_interval(table, level=0.6827, resamples=40_000)
    assert (high - low) / 2 == pytest.approx(sd, rel=0.05)
    assert low < table.mean() < high
    narrow = bootstrap_interval(table.ravel() - np.repeat(2 * np.arange(4), 3))
    wide = bootstrap_interval(table)
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])  # environments that differ make it wider


def test_environments_with_one_seed_each_are_one_level():
    column = np.array([[1.0], [2.0], [5.0]])
    assert bootstrap_interval(column, resamples=4000) == pytest.approx(
        bootstrap_interval(column[:, 0], resamples=4000), abs=0.4
    )


def test_interval_depends_on_its_seed_alone():
    values = [0.1, 0.4, 0.35, 0.8]
    np.random.seed(0)  # noqa: NPY002
    first = bootstrap_interval(values, resamples=200)
    np.random.seed(1)  # noqa: NPY002
    assert bootstrap_interval(values, resamples=200) == first
    assert bootstrap_interval(values, resamples=200, seed=1) != first


def test_no_interval_where_there_is_no_spread_to_see():
    assert all(math.isnan(x) for x in (*bootstrap_interval([0.5]), *bootstrap_interval([0.5, math.nan])))
    assert bootstrap_interval([0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1, 2], level=95)


@pytest.mark.parametrize(("n", "expected"), [(2, 12.706), (3, 4.303), (10, 2.262), (11, 2.228), (31, 2.042)])
def test_students_t_is_that_of_the_tables(n, expected):
    """Two-sided, 95 %, n − 1 degrees of freedom; also with more seeds than a printed table has lines."""
    assert student_t(n) == pytest.approx(expected, abs=5e-4)


def test_one_value_has_no_t():
    with pytest.raises(ValueError, match="two values or more"):
        student_t(1)


def test_mean_and_error_are_those_of_metrics():
    values = [0.9, 0.7, 0.95, math.pi]
    mean, error = metrics.mean_and_standard_error(torch.tensor(values, dtype=torch.float64), 0)
    assert mean_and_error(values) == pytest.approx((float(mean), float(error)), rel=1e-14)
    assert mean_and_error(values)[1] == pytest.approx(stats.sem(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = mean_and_error([0.5])
        none = mean_and_error([])
    assert one[0] == 0.5
    assert all(math.isnan(x) for x in (one[1], *none))
    assert math.isnan(mean_and_error([1.0, math.nan])[0])
