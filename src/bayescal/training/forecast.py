"""What a training will take, before it begins."""

from collections.abc import Sequence
from itertools import groupby

import torch

from bayescal.engine.operations import expected_seconds
from bayescal.methods import get_method
from bayescal.methods.contract import Method
from bayescal.methods.hyperparameters import settings_of
from bayescal.training.loop import training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack

WORTH_SAYING = 60.0  # seconds


def training_operations(method: str | type[Method], problem: Problem, runs: Sequence[Run]) -> float:
    """Floating-point operations of these runs, roughly; those with the same settings and as many images count alike."""
    method = get_method(method)
    alike = lambda run: (str(settings_of(method.space, run.config)), len(run.train))  # noqa: E731
    total = 0.0
    for _, group in groupby(sorted(runs, key=alike), alike):
        first, *others = group
        bound, data, _ = bind_stack(method, problem, [first])
        total += (1 + len(others)) * bound.training_operations(training_samples(data))
    return total


def time_said(operations: float, problem: Problem) -> str | None:
    """ "Training will take about 25 minutes …"; None where it is not worth saying."""
    seconds = expected_seconds(operations, problem.features.device)
    if seconds < WORTH_SAYING:
        return None
    device = torch.device(problem.features.device).type
    return (
        f"Training will take about {in_words(seconds)} here ({len(problem.class_words):,} classes, {device}). "
        "It may be interrupted: the same command goes on where it was."
    )


def in_words(seconds: float) -> str:
    """With as many digits as a guess deserves: "40 seconds", "25 minutes", "3 hours", "2 days"."""
    units = (("second", 1, 90), ("minute", 60, 90), ("hour", 3600, 48), ("day", 86400, float("inf")))
    unit, size = next((unit, size) for unit, size, most in units if seconds < most * size)
    count = max(1, round(seconds / size))
    return f"{count:,} {unit}{'s' * (count != 1)}"
