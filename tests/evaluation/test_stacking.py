"""Stacking weights: the maximum of their objective, found by another optimiser too."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from bayescal.evaluation.stacking import mixture, stacking_weights, true_class_densities


def random_densities(n: int = 60, k: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2


@pytest.mark.parametrize("strength", [0.5, 5.0, 200.0])
def test_no_other_weights_have_a_higher_objective(strength):
    densities = random_densities()
    p, k = densities.numpy(), densities.shape[1]

    def objective(logits: np.ndarray) -> float:
        w = np.exp(logits - logits.max())
        w /= w.sum()
        return -(np.log(p @ w).sum() + strength / k * np.log(w).sum())

    found = minimize(objective, np.zeros(k), method="BFGS", options={"gtol": 1e-10}).x
    expected = np.exp(found - found.max())
    np.testing.assert_allclose(stacking_weights(densities, strength), expected / expected.sum(), atol=1e-4)


def test_a_model_that_is_always_right_gets_nearly_all():
    densities = torch.full((50, 3), 0.1)
    densities[:, 1] = 0.9
    weights = stacking_weights(densities, 1.0)
    assert weights[1] > 0.95
    assert float(weights.sum()) == pytest.approx(1.0)


def test_models_that_are_right_on_different_images_share():
    densities = torch.full((40, 2), 0.05)
    densities[:20, 0] = densities[20:, 1] = 0.9
    assert stacking_weights(densities, 1.0).tolist() == pytest.approx([0.5, 0.5])


def test_a_strong_prior_makes_the_weights_equal():
    weights = stacking_weights(random_densities(), 1e9)
    assert weights.tolist() == pytest.approx([0.25] * 4, abs=1e-6)


def test_tiny_densities_do_not_underflow():
    densities = random_densities() * 1e-200
    torch.testing.assert_close(stacking_weights(densities, 1.0), stacking_weights(random_densities(), 1.0))


def test_an_image_that_no_model_expected_counts_for_none():
    densities = torch.cat([random_densities(), torch.zeros(1, 4, dtype=torch.float64)])
    assert torch.isfinite(stacking_weights(densities, 1.0)).all()


def test_without_images_there_are_no_weights():
    with pytest.raises(ValueError, match="at least one image"):
        stacking_weights(torch.empty(0, 3), 1.0)


def test_densities_and_mixture_pick_the_right_numbers():
    probs = torch.tensor([[[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.9, 0.1]]])  # (K, n, C)
    found = true_class_densities(probs, torch.tensor([0, 1]))
    torch.testing.assert_close(found, torch.tensor([[0.7, 0.5], [0.8, 0.1]]))
    expected = torch.tensor([[0.65, 0.35], [0.375, 0.625]])
    torch.testing.assert_close(mixture(torch.tensor([0.75, 0.25], dtype=torch.float64), probs), expected)
