"""The estimate for an unseen environment: by hand, and how often it covers environments drawn from its own model."""

import math

import numpy as np
import pytest

from bayescal.evaluation.expected import expected_accuracy

NAMES = ("photo", "sketch", "cartoon")


def test_by_hand_for_three_environments():
    found = expected_accuracy([90, 60, 75], [100, 100, 100], NAMES, seen=0.93, scatter=0.5, worth=2.0, level=0.9)
    x = [math.log(90.5 / 10.5), math.log(60.5 / 40.5), math.log(75.5 / 25.5)]
    mean = sum(x) / 3
    between = sum((v - mean) ** 2 for v in x) / 2
    spread = math.sqrt((2 * 0.25 + 2 * between) / 4 * (4 / 3))
    half = 2.1318467863 * spread  # t with 4 degrees of freedom, 95 %
    assert found.unseen == pytest.approx(0.75)
    assert found.low == pytest.approx(1 / (1 + math.exp(half - mean)), abs=1e-8)
    assert found.high == pytest.approx(1 / (1 + math.exp(-half - mean)), abs=1e-8)
    assert (found.worst, found.worst_accuracy, found.seen) == ("sketch", 0.6, 0.93)
    assert found.sentence() == (
        f"In an environment it has not seen, expect about 75% ({found.low:.0%}–{found.high:.0%}); in those it has "
        "seen, 93%. Hardest when left out: sketch (60%)."
    )


def test_with_one_environment_it_says_that_it_cannot_know():
    found = expected_accuracy([], [], (), seen=0.8)
    assert found.unseen is found.low is found.high is None
    assert "cannot be known" in found.sentence()
    assert "80%" in found.sentence()


def test_all_right_and_all_wrong_have_an_interval():
    found = expected_accuracy([10, 0], [10, 10], NAMES[:2])
    assert 0 < found.low < found.unseen < found.high < 1


def test_more_environments_that_agree_narrow_the_interval():
    few = expected_accuracy([80, 80], [100, 100], NAMES[:2])
    many = expected_accuracy([80] * 10, [100] * 10, tuple(map(str, range(10))))
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize("environments", [2, 3, 6])
def test_it_covers_as_often_as_it_says(environments):
    """Environments whose log odds scatter as the prior has it: nine of ten new ones lie inside, one in twenty above."""
    rng, n, inside, trials = np.random.default_rng(environments), 400, 0, 400
    for _ in range(trials):
        centre = rng.normal(1.0, 0.5)
        accuracy = 1 / (1 + np.exp(-rng.normal(centre, 0.8, environments + 1)))
        right = rng.binomial(n, accuracy[:-1])
        found = expected_accuracy(right, [n] * environments, tuple(map(str, range(environments))), scatter=0.8)
        inside += found.low <= accuracy[-1] <= found.high
    assert 0.85 < inside / trials < 0.97
