"""Threshold, temperature and prototypes, worked out by hand."""

import math

import pytest
import torch

from bayescal.evaluation import metrics
from bayescal.evaluation.calibration import (
    MARGIN,
    at_temperature,
    environment_prototypes,
    fit_temperature,
    unsure_threshold,
)

PROBS = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], [[0.2, 0.8], [0.1, 0.9], [0.45, 0.55]]])
LABELS = torch.tensor([0, 0, 1])


def test_the_threshold_is_a_hair_below_that_of_the_metric():
    """An image that is answered now is also answered when another batch makes it 1e-7 less sure."""
    found = unsure_threshold(PROBS, LABELS)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([0.6 - MARGIN, 0.55 - MARGIN], abs=1e-7)
    assert bool((found < metrics.unsure_threshold(PROBS, LABELS)).all())
    less_sure = PROBS - 2e-7
    assert metrics.selective_accuracy(less_sure, LABELS, found).coverage.tolist() == [1.0, 1.0]
    exact = metrics.unsure_threshold(PROBS, LABELS)
    assert metrics.selective_accuracy(less_sure, LABELS, exact).coverage.tolist() == pytest.approx([2 / 3, 2 / 3])


def test_without_a_correct_answer_everything_is_unsure():
    assert unsure_threshold(PROBS[1:, :2], LABELS[:2]).tolist() == [math.inf]


def test_a_temperature_of_one_changes_nothing_and_others_keep_the_order():
    assert at_temperature(PROBS, 1.0) is PROBS
    warmer = at_temperature(PROBS, 2.0)
    expected = PROBS.sqrt() / PROBS.sqrt().sum(-1, keepdim=True)
    assert torch.allclose(warmer, expected, atol=1e-6)
    assert torch.equal(warmer.argmax(-1), PROBS.argmax(-1))
    assert fit_temperature(torch.tensor([[0.5, 0.5]]), torch.tensor([0])) > 0


def test_prototypes_are_mean_directions():
    features = torch.tensor([[3.0, 0.0], [0.0, 5.0], [0.0, 1.0]])
    found = environment_prototypes(features, torch.tensor([0, 0, 2]), 3)
    half = math.sqrt(0.5)
    assert torch.allclose(found, torch.tensor([[half, half], [0.0, 0.0], [0.0, 1.0]]))  # the second has no image
