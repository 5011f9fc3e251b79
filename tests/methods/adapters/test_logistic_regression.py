"""Logistic regression equals scikit-learn's around zero, and zero-shot where the data count for nothing."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as Reference

import tiny
from bayescal.errors import MethodError
from bayescal.methods.adapters.logistic_regression import LogisticRegression, logistic_regression
from bayescal.methods.contract import Runs
from bayescal.training.stack import train_runs

NAME = "logistic-regression"
TEMPLATE = "a photo of a {}."


def config(strength: float, around: str = "zero") -> dict:
    return {"strength": strength, "around": around, "template": TEMPLATE}


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
def test_probabilities_are_those_of_scikit_learn(strength):
    problem = tiny.tiny_problem(dtype=torch.float64)
    run = tiny.tiny_run(config(strength), seed=3)
    result = train_runs(NAME, problem, [run])[0]
    unit = torch.nn.functional.normalize(problem.features, dim=-1).numpy()
    rows = run.train.numpy()
    reference = Reference(C=strength, tol=1e-10, max_iter=10_000).fit(unit[rows], problem.labels[rows].numpy())
    ours = result.predict(problem, problem.features, samples=0).probs[0]
    np.testing.assert_allclose(ours.numpy(), reference.predict_proba(unit), atol=1e-5)


def test_the_gradient_vanishes_at_the_solution():
    problem = tiny.tiny_problem(dtype=torch.float64)
    x, y, strength = torch.nn.functional.normalize(problem.features[:40], dim=-1), problem.labels[:40], 5.0
    centre = torch.randn(x.shape[1], 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight, bias = (t.requires_grad_() for t in logistic_regression(problem.features[:40], y, centre, strength))
    fit = torch.nn.functional.cross_entropy(x @ weight + bias, y, reduction="sum")
    loss = strength * fit + (weight - centre).square().sum() / 2
    gradients = torch.autograd.grad(loss, [weight, bias])
    assert all(float(gradient.abs().max()) < 1e-4 for gradient in gradients)


def test_without_trust_in_the_data_it_is_the_zero_shot_classifier():
    problem = tiny.tiny_problem(dtype=torch.float64)
    run = tiny.tiny_run(config(1e-9, "text"), seed=1)
    ours = train_runs(NAME, problem, [run])[0]
    # The intercept is free even then: it fits the shares of the classes, as the penalty does not hold it.
    scores = torch.nn.functional.normalize(problem.features, dim=-1) @ ours.params["weight"][0]
    zero_shot = train_runs("clip", problem, [tiny.tiny_run({"template": TEMPLATE}, seed=1)])[0]
    expected = zero_shot.predict(problem, problem.features, samples=0).probs[0]
    torch.testing.assert_close(scores.softmax(-1), expected, rtol=0, atol=1e-6)


def test_an_unknown_centre_is_refused():
    with pytest.raises(MethodError, match="around is 'nothing', expected one of text, zero"):
        train_runs(NAME, tiny.tiny_problem(), [tiny.tiny_run(config(1.0, "nothing"), 1)])


def test_a_stack_is_its_runs_one_by_one():
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(config(s, "text"), seed) for s, seed in ((0.5, 1), (50.0, 2), (10.0, 3))]
    for run, together in zip(runs, train_runs(NAME, problem, runs), strict=True):
        alone = train_runs(NAME, problem, [run])[0]
        for name in ("weight", "bias"):
            torch.testing.assert_close(together.params[name], alone.params[name], rtol=1e-4, atol=1e-5)


def test_other_classes_are_refused():
    problem = tiny.tiny_problem()
    result = train_runs(NAME, problem, [tiny.tiny_run(config(10.0), 1)])[0]
    method = result.bind(problem, classes=("dog", "cat"))
    with pytest.raises(MethodError, match="knows the 3 classes"):
        method.prepare(result.params, 0)


def test_it_has_no_steps():
    problem = tiny.tiny_problem()
    runs = Runs.stack(LogisticRegression.space, [config(10.0)], [1])
    with pytest.raises(MethodError, match="nothing to train"):
        LogisticRegression(problem.task([tiny.ENVIRONMENTS]), runs).loss({}, None)
