"""When a share of random events is what it should be."""

import numpy as np


def within_binomial_bounds(hits, rate: float) -> bool:
    """Five standard deviations: a right implementation fails about once in two million."""
    return abs(np.mean(hits) - rate) < 5 * np.sqrt(rate * (1 - rate) / len(hits))
