"""Stable learning: the measure of dependence against its definition, and weights that lower it."""

import numpy as np
import torch
from visual_setup import case

from bayescal.methods.domain_generalization.stable import dependence

F64 = torch.float64


def reference_dependence(functions, weights) -> float:
    """1/F Σ_{i≠j} mean_{q,q'} Cov_w², with numpy's weighted covariance: functions (B, F, Q), weights (B,)."""
    _, n_features, n_functions = functions.shape
    total = 0.0
    for i in range(n_features):
        for j in range(n_features):
            for p in range(n_functions):
                for q in range(n_functions):
                    if i != j:
                        pair = np.stack([functions[:, i, p], functions[:, j, q]])
                        total += np.cov(pair, aweights=weights, ddof=0)[0, 1] ** 2 / n_functions**2
    return total / n_features


def test_dependence_against_its_definition():
    rng = np.random.default_rng(0)
    functions, weights = rng.standard_normal((2, 11, 4, 3)), rng.random((2, 11))
    weights /= weights.sum(1, keepdims=True)
    value = dependence(torch.from_numpy(functions), torch.from_numpy(weights))
    for r in range(2):
        assert abs(float(value[r]) - reference_dependence(functions[r], weights[r])) < 1e-12


def dependent_features(n: int = 200):
    """Two features that agree in sign nine times out of ten, and one that is independent of them."""
    g = torch.Generator().manual_seed(3)
    a = torch.randn(n, generator=g, dtype=F64)
    agree = torch.rand(n, generator=g) < 0.9
    b = torch.where(agree, 1.0, -1.0) * a.sign() + 0.3 * torch.randn(n, generator=g, dtype=F64)
    return torch.stack([a, b, torch.randn(n, generator=g, dtype=F64)], dim=1)[None], agree


def test_learned_weights_lower_the_dependence_and_favour_the_rare_samples():
    method = case("stable", [{"weight_steps": 40, "fourier_functions": 10}]).method
    features, agree = dependent_features()
    functions = method.functions(features, step=0)
    uniform = torch.full((1, 200), 1 / 200, dtype=F64)
    weights = method.weights(functions)
    torch.testing.assert_close(weights.sum(1), torch.ones(1, dtype=F64))
    assert float(dependence(functions, weights)) < 0.2 * float(dependence(functions, uniform))
    # Functions that were not used to find the weights agree.
    fresh = method.functions(features, step=1)
    assert float(dependence(fresh, weights)) < 0.5 * float(dependence(fresh, uniform))
    assert float(weights[0, ~agree].mean()) > 2 * float(weights[0, agree].mean())


def test_dear_weights_stay_equal_and_equal_weights_are_erm():
    method = case("stable", [{"lambda_spread": 1e6}]).method
    weights = method.weights(method.functions(dependent_features()[0], step=0))
    torch.testing.assert_close(weights, torch.full((1, 200), 1 / 200, dtype=F64), rtol=5e-2, atol=0)
    c = case("stable", [{"weight_steps": 0}] * 2)
    grads, _ = c.method.gradients(c.params, c.batch)
    for r in range(2):
        net, x, y, _ = c.row(r)
        net.loss(x, y).backward()
        for name, grad in grads.items():
            torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_loss_is_the_weighted_one_and_weights_carry_no_gradient():
    c = case("stable", [{}])
    grads, terms = c.method.gradients(c.params, c.batch)
    weights = c.method.weights(c.method.functions(c.method.network.representation(c.params, c.batch.features), 0))
    net, x, y, _ = c.row(0)
    loss = (weights[0] * torch.nn.functional.cross_entropy(net(x), y, reduction="none")).sum()
    loss.backward()
    torch.testing.assert_close(terms["total"][0], loss.detach())
    for name, grad in grads.items():
        torch.testing.assert_close(grad[0], net.weights[name].grad, rtol=1e-8, atol=1e-12)
    assert float(weights.max() / weights.min()) > 1.5


def test_fourier_functions_are_redrawn_per_step_and_row_and_sample_wide_features():
    method = case("stable", [{"sampled_features": 5}] * 2).method
    features = torch.randn(1, 50, 12, dtype=F64).expand(2, -1, -1)
    first, second = method.functions(features, 0), method.functions(features, 1)
    assert first.shape == (2, 50, 5, 5)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first[0], first[1])
    # √2 cos has mean square 1 over random phases.
    many = torch.stack([method.functions(features, step) for step in range(100)])
    assert abs(float(many.square().mean()) - 1) < 0.02
