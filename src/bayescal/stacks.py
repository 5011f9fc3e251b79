"""From a list of runs to stacks and back: group what can be trained together, train, hand each run its own result."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal.console import messages
from bayescal.methods import get_method
from bayescal.methods.base import Method, Predictive, Runs, Task, predict
from bayescal.optim import Params
from bayescal.space import Config, settings_of
from bayescal.training import StackData, train


@dataclass(frozen=True)
class Problem:
    """Features, labels and words: everything that runs share. Nothing in it is learned."""

    text: Any  # TextTower
    tokenize: Callable[[str], list[int]]
    logit_scale: float
    features: Tensor  # (N, D)
    labels: Tensor  # (N,)
    environments: Tensor  # (N,): index into environment_words
    class_words: tuple[str, ...]
    environment_words: tuple[str, ...]
    views: Tensor | None = None  # (U, V, D)
    view_rows: Tensor | None = None  # (N,)

    @classmethod
    def of(
        cls,
        backbone: Any,
        features: Tensor,
        labels: Any,
        environments: Any,
        classes: Sequence[str],
        environment_words: Sequence[str],
        **views: Tensor | None,
    ) -> "Problem":
        """With a backbone's text tower; labels and environments (arrays of numbers) go where the features are."""
        return cls(
            text=backbone.text,
            tokenize=backbone.tokenize,
            logit_scale=backbone.logit_scale,
            features=features,
            labels=torch.tensor(labels, device=features.device),
            environments=torch.tensor(environments, device=features.device),
            class_words=tuple(classes),
            environment_words=tuple(environment_words),
            **views,
        )

    def task(self, environments: Sequence[Sequence[str]]) -> Task:
        names = tuple(tuple(row) for row in environments)
        if len(set(names)) == 1:
            names = names[:1]
        return Task(self.text, self.tokenize, self.logit_scale, self.class_words, names)


@dataclass(frozen=True)
class Run:
    """One training: a method's hyper-parameters, a seed, and the images it may use."""

    config: Config
    seed: int
    train: Tensor  # (n,) image indices
    judged: Mapping[str, Tensor] = field(default_factory=dict)  # name → image indices; "val" picks the checkpoint


@dataclass(frozen=True)
class RunResult:
    """What a run learned and how it went; `params` and `best_params` are stacks of one row."""

    method: str
    config: Config
    seed: int
    environments: tuple[str, ...]  # words of the training environments
    params: Params
    best_params: Params
    best_epoch: int
    curves: dict[str, list[float]]
    stopped: str | None
    seconds: float

    def bind(self, problem: Problem, classes: Sequence[str] | None = None) -> Method:
        """The method with this run's row, ready to predict; with other `classes`, to predict new names."""
        method = get_method(self.method)
        task = problem.task([self.environments])
        if classes is not None:
            task = replace(task, classes=tuple(classes))
        return method(task, Runs.stack(method.space, [self.config], [self.seed], problem.features.device))

    def predict(
        self, problem: Problem, features: Tensor, *, draws: int, best: bool = False, groups: Tensor | None = None
    ) -> Predictive:
        return predict(self.bind(problem), self.best_params if best else self.params, features, draws, groups)


def train_runs(
    method_name: str,
    problem: Problem,
    runs: Sequence[Run],
    *,
    max_rows: int = 256,
    checkpoints: Path | None = None,
    progress: str | None = None,
) -> list[RunResult]:
    """Train every run, as few stacks as their settings allow; results come in the order of the runs.

    With `checkpoints` (a folder) a killed call continues. `progress` is the title of a progress bar; None: no bar.
    """
    method = get_method(method_name)
    results: list[RunResult | None] = [None] * len(runs)
    with epoch_bar(progress, sum(run.config.get("epochs", 0) for run in runs)) as advance:
        for rows in group_runs(method, problem, runs, max_rows):
            part = [runs[i] for i in rows]
            trained = _train_stack(method, problem, part, checkpoints, partial(_advance, advance, len(part)))
            for i, result in zip(rows, trained, strict=True):
                results[i] = result
    return results


def _advance(advance: Callable[[int], None], rows: int, epoch: int, epochs: int) -> None:
    advance(rows)


@contextlib.contextmanager
def epoch_bar(title: str | None, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over epochs × runs with the time left; without a title, nothing is shown."""
    if title is None:
        yield lambda n: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    columns += (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)


def group_runs(method: type[Method], problem: Problem, runs: Sequence[Run], max_rows: int) -> Iterator[list[int]]:
    """Indices of runs that can share a stack: same settings, as many images, as many environments."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        key = [settings_of(method.space, run.config), len(run.train), len(_train_environments(problem, run))]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(i)
    for rows in groups.values():
        for at in range(0, len(rows), max_rows):
            yield rows[at : at + max_rows]


def _train_environments(problem: Problem, run: Run) -> list[int]:
    return problem.environments[run.train].unique().tolist()


def _train_stack(
    method: type[Method],
    problem: Problem,
    runs: Sequence[Run],
    checkpoints: Path | None,
    on_epoch: Callable[[int, int], None],
) -> list[RunResult]:
    device = problem.features.device
    seen = [_train_environments(problem, run) for run in runs]
    words = [tuple(problem.environment_words[e] for e in row) for row in seen]
    bound = method(
        problem.task(words),
        Runs.stack(method.space, [run.config for run in runs], [run.seed for run in runs], device),
    )
    identity = stack_identity(method.name, problem, runs)
    path = checkpoints / f"{identity[:24]}.safetensors" if checkpoints is not None else None
    trained = train(bound, stack_data(problem, runs, seen), checkpoint=path, identity=identity, on_epoch=on_epoch)
    row = lambda tensors, r: {name: value[r : r + 1].clone() for name, value in tensors.items()}  # noqa: E731
    return [
        RunResult(
            method=method.name,
            config=run.config,
            seed=run.seed,
            environments=words[r],
            params=row(trained.params, r),
            best_params=row(trained.best_params, r),
            best_epoch=int(trained.best_epoch[r]),
            curves={name: values[:, r].tolist() for name, values in trained.curves.items()},
            stopped=trained.stopped.get(r),
            seconds=trained.seconds / len(runs),
        )
        for r, run in enumerate(runs)
    ]


def stack_data(problem: Problem, runs: Sequence[Run], seen: Sequence[Sequence[int]]) -> StackData:
    """Index tensors of a stack; `seen` are the training environments of each row."""
    device = problem.features.device
    local = torch.full((len(runs), len(problem.environment_words)), -1, device=device)
    for r, environments in enumerate(seen):
        local[r, environments] = torch.arange(len(environments), device=device)
    names = list(runs[0].judged)
    judged = {name: torch.zeros(len(runs), len(problem.labels), dtype=torch.bool, device=device) for name in names}
    for r, run in enumerate(runs):
        for name in names:
            judged[name][r, run.judged[name]] = True
    return StackData(
        features=problem.features,
        labels=problem.labels,
        environments=problem.environments,
        local=local,
        train=torch.stack([run.train for run in runs]),
        judged=judged,
        views=problem.views,
        view_rows=problem.view_rows,
    )


def stack_identity(method: str, problem: Problem, runs: Sequence[Run]) -> str:
    """Hash of everything that decides a stack's outcome, so that a checkpoint of something else is never continued."""
    digest = hashlib.sha256()
    words = [problem.class_words, problem.environment_words]
    # Judged images count too: they choose the best epoch, and their curves are part of the outcome.
    judged = [{name: rows.tolist() for name, rows in run.judged.items()} for run in runs]
    configs = [[run.config, run.seed, run.train.tolist(), sets] for run, sets in zip(runs, judged, strict=True)]
    digest.update(json.dumps([method, words, configs], sort_keys=True).encode())
    for tensor in (
        problem.features,
        problem.labels,
        problem.environments,
        problem.views,
        problem.text.positions,
    ):
        if tensor is not None:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
