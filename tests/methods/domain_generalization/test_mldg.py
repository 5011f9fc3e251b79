"""MLDG: the exact meta-gradient against finite differences, the first-order one against two plain gradients."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from visual_setup import PlainNet, case

OPTIONS = {"lambda_meta_test": 1.7, "inner_rate": 0.3, "meta_test_environments": 1}


def sides(c, r):
    """Meta-train and meta-test environments of a row."""
    held = c.method.held_out(c.batch.step)[r]
    return [g for g in range(3) if not held[g]], [g for g in range(3) if held[g]]


def mean_risk(net, x, y, e, environments):
    return sum(F.cross_entropy(net(x[e == g]), y[e == g]) for g in environments) / len(environments)


def inner_step(net, x, y, e, environments, rate):
    loss = mean_risk(net, x, y, e, environments)
    gradients = dict(zip(net.weights, torch.autograd.grad(loss, list(net.weights.values())), strict=True))
    return PlainNet({n: w.detach() - rate * gradients[n] for n, w in net.weights.items()}), gradients


def objective(net, x, y, e, train, test) -> float:
    """F(θ) + β G(θ − α∇F(θ)), as a number."""
    moved, _ = inner_step(net, x, y, e, train, OPTIONS["inner_rate"])
    value = mean_risk(net, x, y, e, train) + OPTIONS["lambda_meta_test"] * mean_risk(moved, x, y, e, test)
    return float(value.detach())


def test_exact_gradient_against_finite_differences():
    c = case("mldg", [{**OPTIONS, "second_order": True}] * 2, step=3)
    grads, terms = c.method.gradients(c.params, c.batch)
    rng = np.random.default_rng(0)
    for r in range(2):
        net, x, y, e = c.row(r)
        train, test = sides(c, r)
        assert float(terms["total"][r]) == pytest.approx(objective(net, x, y, e, train, test), rel=1e-10)
        for name, weight in net.weights.items():
            # The direction of steepest ascent, and two random ones.
            for direction in (grads[name][r], *torch.from_numpy(rng.standard_normal((2, *weight.shape)))):
                direction = direction / direction.norm()
                step = 1e-6
                ends = []
                for sign in (1, -1):
                    shifted = {**net.weights, name: weight.detach() + sign * step * direction}
                    ends.append(objective(PlainNet(shifted), x, y, e, train, test))
                gradient = (ends[0] - ends[1]) / (2 * step)
                assert gradient == pytest.approx(float((grads[name][r] * direction).sum()), rel=1e-4, abs=1e-7)


def test_first_order_gradient_is_the_sum_of_two():
    c = case("mldg", [OPTIONS] * 2, step=3)
    grads, _ = c.method.gradients(c.params, c.batch)
    exact = case("mldg", [{**OPTIONS, "second_order": True}] * 2, step=3)
    second, _ = exact.method.gradients(exact.params, exact.batch)
    for r in range(2):
        net, x, y, e = c.row(r)
        train, test = sides(c, r)
        moved, gradients = inner_step(net, x, y, e, train, OPTIONS["inner_rate"])
        mean_risk(moved, x, y, e, test).backward()
        for name, gradient in gradients.items():
            expected = gradient + OPTIONS["lambda_meta_test"] * moved.weights[name].grad
            torch.testing.assert_close(grads[name][r], expected, rtol=1e-9, atol=1e-12)
    assert float((grads["hidden2.weight"] - second["hidden2.weight"]).abs().max()) > 1e-4  # the setting has an effect


def test_splits_are_drawn_and_leave_an_environment_to_train_on():
    for asked, held in ((1, 1), (2, 2), (5, 2)):
        method = case("mldg", [{"meta_test_environments": asked}] * 2).method
        splits = torch.stack([method.held_out(step) for step in range(40)])  # (steps, R, E)
        assert (splits.sum(-1) == held).all()
        assert splits.any(0).all()
        assert (~splits).any(0).all()
        assert not torch.equal(splits[:, 0], splits[:, 1])


def test_an_environment_that_is_absent_counts_on_neither_side():
    c = case("mldg", [{**OPTIONS, "meta_test_environments": 1}], absent=2)
    for step in range(12):
        batch = type(c.batch)(c.batch.features, c.batch.labels, c.batch.environments, 24, step)
        held = [g for g in range(3) if c.method.held_out(step)[0, g]]
        terms = c.method.gradients(c.params, batch)[1]
        net, x, y, e = c.row(0)
        present = [g for g in range(2) if g not in held]
        torch.testing.assert_close(terms["meta_train"][0], mean_risk(net, x, y, e, present).detach())
        if held == [2]:
            assert float(terms["meta_test"][0]) == 0.0
