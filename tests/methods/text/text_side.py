"""What the tests of LV, W2V, CoCoOp and DPLCLIP share."""

import pytest
import torch

import tiny
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Method, Runs, predict
from bayescal.methods.hyperparameters import default_config
from bayescal.training.problem import Problem
from bayescal.training.runs import RunResult
from bayescal.training.stack import train_runs

F64 = torch.float64


def bound(name: str, seeds=(3,), problem: Problem | None = None, dtype=F64, **options) -> tuple[Method, Problem]:
    """A method on the tiny problem, one row per seed."""
    problem = problem or tiny.tiny_problem(dtype=dtype)
    method = get_method(name)
    config = default_config(method.space, tiny.Defaults, **options)
    runs = Runs.stack(method.space, [config] * len(seeds), list(seeds))
    return method(problem.task([tiny.ENVIRONMENTS]), runs), problem


def batch_of(problem: Problem, rows: int = 1, n: int = 24, step: int = 5) -> Batch:
    """The first n images, shifted by one from row to row so that rows differ."""
    images = torch.stack([torch.arange(n) + r for r in range(rows)])
    return Batch(problem.features[images], problem.labels[images], problem.environments[images], n, step)


def stirred(params: dict, scale: float = 0.1) -> dict:
    """Parameters away from their starting point, where zeros and symmetries would hide mistakes."""
    return {
        n: v if v.dtype == torch.int64 else v + scale * torch.arange(v.numel(), dtype=v.dtype).view_as(v).sin()
        for n, v in params.items()
    }


def check_stack_equals_single_runs(name: str, numbers: list[dict], **options) -> None:
    """Rows with other seeds, images, environments and numbers, trained together and one by one, in float64."""
    problem = tiny.tiny_problem(dtype=F64)
    space = get_method(name).space
    rows = zip([1, 2, 5], [(0, 1), (0, 2), (0, 1)], numbers, strict=True)
    runs = [
        tiny.tiny_run(default_config(space, tiny.Defaults, **options, **changes), seed, environments)
        for seed, environments, changes in rows
    ]
    together = train_runs(name, problem, runs)
    for run, row in zip(runs, together, strict=True):
        alone = train_runs(name, problem, [run])[0]
        assert row.params.keys() == alone.params.keys()
        for key, value in alone.params.items():
            assert torch.allclose(row.params[key], value, rtol=0, atol=1e-10), key
        assert row.curves["val"] == alone.curves["val"]  # what is evaluated together is a row's own set
        assert row.curves["ce"] == pytest.approx(alone.curves["ce"], abs=1e-10)


def train_accuracy(name: str, **options) -> float:
    """Accuracy on its own training images after training on the tiny problem, whose classes are well apart."""
    problem = tiny.tiny_problem(gentle=True)
    config = default_config(get_method(name).space, tiny.Defaults, **options)
    result = train_runs(name, problem, [tiny.tiny_run(config, 1, n=36)])[0]
    return accuracy(result, problem, tiny.tiny_run(config, 1, n=36).train)


def accuracy(result: RunResult, problem: Problem, images: torch.Tensor) -> float:
    method = result.bind(problem)
    answer = predict(method, result.params, problem.features[images], groups=problem.environments[images])
    return float((answer.probs[0].argmax(-1) == problem.labels[images]).float().mean())
