"""Random search: draws of a method's hyper-parameters × seeds as runs, and the choice among their results."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bayescal.space import Config, Space, draw_config
from bayescal.stacks import RunResult

if TYPE_CHECKING:
    from bayescal.backbones.defaults import TrainingDefaults


def draw_configs(space: Space, defaults: "TrainingDefaults", trials: int, **given: Any) -> list[Config]:
    """Random draws 0 … trials − 1, each different one once: equal draws would only repeat the same run."""
    draws = [draw_config(space, defaults, trial, **given) for trial in range(trials)]
    return list({json.dumps(config, sort_keys=True): config for config in draws}.values())


def best_per_seed(results: Sequence[RunResult], score: Callable[[RunResult], float]) -> list[RunResult]:
    """For each seed the run with the highest score, the first of equals; runs that stopped are not considered."""
    chosen = []
    for seed in sorted({result.seed for result in results}):
        candidates = [r for r in results if r.seed == seed and r.stopped is None]
        if candidates:
            chosen.append(max(candidates, key=score))
    return chosen


def last(curve: str) -> Callable[[RunResult], float]:
    """Score by a judged set at the last checkpoint: one query per draw, as test-domain validation asks."""
    return lambda result: result.curves[curve][-1]
