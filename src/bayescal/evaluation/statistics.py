"""Is the difference real? Exact paired tests, bootstrap intervals, means with their standard errors.

The signed-rank test stays our own: scipy's is not exact where differences are equal, and with few seeds they often are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

TIE = 1e-12  # relative to the values: 0.9 − 0.8 and 0.8 − 0.7 are one difference, whatever their last bit says


@dataclass(frozen=True)
class Wilcoxon:
    """Outcome of the signed-rank test; with few pairs, read `p` beside `smallest_p`."""

    n: int  # pairs that differ
    statistic: float  # the smaller of the rank sums of positive and of negative differences
    p: float  # exact, two-sided
    smallest_p: float  # the p of n differences that all have the same sign: no data give less
    dropped: int  # pairs without a difference
    why: str = ""  # why there is no p


def wilcoxon(a: ArrayLike, b: ArrayLike) -> Wilcoxon:
    """Exact two-sided Wilcoxon signed-rank test of paired values: a and b, (n,) each.

    Pairs without a difference say nothing about its sign and are dropped (Wilcoxon's own rule, 1945). Equal
    differences share the mean of their ranks, and the distribution is that of the shared ranks: no normal
    approximation, whatever the ties. Six pairs cannot give less than 2/2⁶ = 0.031.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"paired values must be two lists of one length; got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a pair without two finite values is no pair: leave it out, and say so")
    tolerance = TIE * max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    difference = a - b
    differs = np.abs(difference) > tolerance
    dropped = int((~differs).sum())
    difference = difference[differs]
    n = len(difference)
    if n == 0:
        why = "no two values differ" if dropped else "there are no pairs"
        return Wilcoxon(0, math.nan, math.nan, math.nan, dropped, why)
    ranks = twice_mid_ranks(np.abs(difference), tolerance)
    positive = int(ranks[difference > 0].sum())
    smaller = min(positive, int(ranks.sum()) - positive)
    # The distribution of the rank sum is symmetric, so the two tails are alike.
    p = min(1.0, 2 * float(rank_sum_probabilities(ranks)[: smaller + 1].sum()))
    return Wilcoxon(n, smaller / 2, p, 2.0 ** (1 - n), dropped)


def twice_mid_ranks(values: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
    """Twice the rank of each value, (n,) whole numbers; values closer than the tolerance share their mean rank."""
    order = np.argsort(values, kind="stable")
    group = np.concatenate([[0], np.cumsum(np.diff(values[order]) > tolerance)])  # (n,), in sorted order
    first, last = (np.searchsorted(group, group, side=side) for side in ("left", "right"))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = first + last + 1  # the ranks first+1 … last have the mean (first + 1 + last)/2
    return ranks


def rank_sum_probabilities(ranks: Sequence[int] | np.ndarray) -> np.ndarray:
    """Distribution of the sum of those ranks that a fair coin picks: P(sum = k), k = 0 … Σ ranks."""
    probability = np.ones(1)
    for rank in ranks:
        longer = np.zeros(len(probability) + int(rank))
        longer[: len(probability)] += probability / 2
        longer[int(rank) :] += probability / 2
        probability = longer
    return probability


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean: values (seeds,) or (environments, seeds).

    Two levels: a resample takes environments with replacement, and inside each of them seeds with replacement, because
    another study would have had other environments as well as other seeds. With one environment there is nothing to
    resample on the first level and the interval speaks of seeds alone. One value has no spread: NaN, as has a NaN among
    the values. Few values give intervals that are too narrow; the percentile bootstrap does not correct for it.
    """
    table = np.atleast_2d(np.asarray(values, dtype=float))  # (E, S)
    if table.ndim > 2 or not 0 < level < 1 or resamples < 1:
        raise ValueError("expected values (seeds,) or (environments, seeds), 0 < level < 1 and at least one resample")
    if table.size < 2 or np.isnan(table).any():
        return math.nan, math.nan
    n_environments, n_seeds = table.shape
    generator = np.random.default_rng(seed)
    environment = np.zeros((resamples, 1), dtype=np.int64)
    if n_environments > 1:
        environment = generator.integers(0, n_environments, (resamples, n_environments))
    seeds = generator.integers(0, n_seeds, (*environment.shape, n_seeds))
    means = table[environment[..., None], seeds].mean((1, 2))  # (resamples,)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def student_t(n: int, level: float = 0.95) -> float:
    """How many standard errors a mean of n values may be from zero by chance: 12.7 for two values, 2.23 for eleven."""
    if n < 2:
        raise ValueError(f"the spread of a mean needs two values or more; got {n}")
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, n - 1))


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """Mean of values (n,) and its standard error s/√n, n − 1 in s: `metrics.mean_and_standard_error` for plain numbers.

    One value has no spread to measure: its error is NaN. No values: both are NaN.
    """
    values = np.asarray(values, dtype=float).ravel()
    n = len(values)
    mean = float(values.mean()) if n else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
