"""Counts of learned numbers, against counting by hand."""

import pytest

from bayescal.methods import method_names
from bayescal.methods.parameter_count import learned_numbers

W, D, C, E, M = 256, 512, 7, 3, 4
MLP = D * 256 + 256 + 256 * 64 + 64 + 64 * C + C
W2V = 300 * 600 + 600 + 600 * D + D
BY_HAND = {
    "clip": 0,
    "coop": C * M * W,  # a context for each name
    "cal": (C + E) * M * W,
    "bayes-cal": 2 * (C + E) * M * W,
    "cal-lv": (C + E) * D,
    "bayes-cal-lv": 2 * (C + E) * D,
    "taskres": C * D,
    "bayes-taskres": 2 * C * D,
    "cal-w2v": 2 * W2V,
    "bayes-cal-w2v": 2 * W2V + (C + E) * D,
    "tip-adapter": 0,
    "tip-adapter-f": 112 * D,
    "logistic-regression": (D + 1) * C,
    "visual-mlp": MLP,
    "erm": MLP,
}


@pytest.mark.parametrize("name", method_names())
def test_count(name):
    count = learned_numbers(name)
    assert count == BY_HAND[name] if name in BY_HAND else count > 0
