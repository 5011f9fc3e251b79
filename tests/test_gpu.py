"""What only a GPU can show. Without one these are skipped; `engine/test_cuda_graph.py` has a stand-in for it."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch

import tiny
from bayescal.data.preprocess import Preprocess
from bayescal.engine import cuda_graph
from bayescal.errors import BayescalWarning
from bayescal.features.extract import _preparation
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import train_runs
from small_runs import LEARNING

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


def on_gpu(problem: Problem, runs: list[Run], **changes) -> tuple[Problem, list[Run]]:
    moved = {name: getattr(problem, name).cuda() for name in ("text", "features", "labels", "environments")}
    return dataclasses.replace(problem, **moved, **changes), [
        dataclasses.replace(run, train=run.train.cuda(), eval_sets={k: v.cuda() for k, v in run.eval_sets.items()})
        for run in runs
    ]


@pytest.mark.parametrize("name", LEARNING)
def test_recorded_training_is_training_step_by_step(monkeypatch, make_runs, name):
    """To rounding, next to the way that the parameters have gone: kernels may be others in a recording."""
    problem, runs = on_gpu(tiny.tiny_problem(gentle=True), make_runs(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayescalWarning)  # every method can be recorded
        recorded = train_runs(name, problem, runs, trajectory=True)
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graph, "WARM_UP", 10**9)
        plain = train_runs(name, problem, runs, trajectory=True)
    for one, two in zip(recorded, plain, strict=True):
        torch.testing.assert_close(one.curves["total"], two.curves["total"], rtol=1e-3, atol=1e-4)
        for parameter, path in two.trajectory.items():
            way = (path[-1] - path[0]).norm()
            assert float((one.trajectory[parameter] - path).norm()) < 0.02 * float(way), parameter


@pytest.mark.parametrize("name", ["coop", "cal", "bayes-cal", "cocoop", "dplclip"])
def test_float16_layers_train_as_float32_ones(make_runs, name):
    problem, runs = on_gpu(tiny.tiny_problem(gentle=True), make_runs(name))
    half = dataclasses.replace(problem, precision=torch.float16)
    for one, two in zip(train_runs(name, half, runs), train_runs(name, problem, runs), strict=True):
        torch.testing.assert_close(one.curves["total"], two.curves["total"], rtol=0.02, atol=0.005)


def test_a_row_that_fails_stops_alone(make_runs):
    problem, (good, bad) = on_gpu(tiny.tiny_problem(gentle=True), make_runs("bayes-cal"))
    bad = dataclasses.replace(bad, config={**bad.config, "learning_rate": float("inf")})
    mixed, stopped = train_runs("bayes-cal", problem, [good, bad])
    assert stopped.stopped.startswith("stopped at step 4:")  # the second step after the warm-up epoch
    (alone,) = train_runs("bayes-cal", problem, [good])
    torch.testing.assert_close(mixed.params["class.context"], alone.params["class.context"], rtol=1e-4, atol=1e-5)


def test_pixels_are_normalised_to_the_same_bit():
    how = Preprocess(24, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bicubic", "shortest")
    model = type("Model", (), {"preprocess": how, "device": torch.device("cuda")})
    pixels = np.arange(2 * 24 * 24 * 3, dtype=np.int64).astype(np.uint8).reshape(2, 24, 24, 3)
    found = _preparation(model)(pixels).cpu()
    model.device = torch.device("cpu")
    assert torch.equal(found, _preparation(model)(pixels))
