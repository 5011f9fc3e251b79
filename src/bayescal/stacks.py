"""From a list of runs to stacks and back: group what can be trained together, train, hand each run its own result."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal.console import training_bar
from bayescal.errors import BayescalWarning, MethodError
from bayescal.memory import activation_budget
from bayescal.methods import get_method
from bayescal.methods.base import Method, Predictive, Runs, Task, predict
from bayescal.optim import Params
from bayescal.prompts import encode_token_lists, normalized
from bayescal.space import Config, settings_of
from bayescal.training import StackData, train, training_samples

SAME = 0.99  # cosine between what two precisions of a tower say of a name; bfloat16 has 0.999 and more


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
    precision: torch.dtype | None = None  # of the text tower's layers in training; None: as they are

    @cached_property
    def places(self) -> Tensor:
        """`environments` on the CPU, where small questions are answered sooner."""
        return self.environments.cpu()

    @cached_property
    def training_text(self) -> Any:
        """The text tower that training uses. What is learned is read by `text` itself.

        A tower whose numbers `precision` cannot hold trains as it is.
        """
        if self.precision is None:
            return self.text
        lower = self.text.in_precision(self.precision)
        words = [self.tokenize(word) for word in self.class_words]
        one, two = (normalized(encode_token_lists(tower, words)) for tower in (self.text, lower))
        if bool(((one * two).sum(-1) > SAME).all()):  # not so with NaN
            return lower
        warnings.warn(
            f"this text tower cannot compute in {str(self.precision).removeprefix('torch.')}: it reads the class names "
            f"differently there. It is trained in {str(self.text.dtype).removeprefix('torch.')}",
            BayescalWarning,
            stacklevel=2,
        )
        return self.text

    @classmethod
    def of(
        cls,
        backbone: Any,
        features: Tensor,
        labels: Any,
        environments: Any,
        classes: Sequence[str],
        environment_words: Sequence[str],
        **more: Any,
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
            **more,
        )

    def task(self, environments: Sequence[Sequence[str]], training: bool = False) -> Task:
        names = tuple(tuple(row) for row in environments)
        if len(set(names)) == 1:
            names = names[:1]
        text = self.training_text if training else self.text
        return Task(text, self.tokenize, self.logit_scale, self.class_words, names)


@dataclass(frozen=True)
class Run:
    """One training: a method's hyper-parameters, a seed, and the images it may use."""

    config: Config
    seed: int
    train: Tensor  # (n,) image indices
    judged: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # name → image indices; `training.CHOOSERS` among them pick checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """A run's parameters, a stack of one row, at the end of an epoch (counted from 1; 0: before the first)."""

    params: Params
    epoch: int


@dataclass(frozen=True)
class RunResult:
    """What a run learned and how it went; parameters are stacks of one row."""

    method: str
    config: Config
    seed: int
    environments: tuple[str, ...]  # words of the training environments
    params: Params
    best: dict[str, Checkpoint]  # by chooser; "val" is always there: without such a set, the last epoch
    curves: dict[str, list[float]]
    stopped: str | None
    seconds: float
    probes: dict[str, list[float]] = field(default_factory=dict)  # gradient norms by loss term, and their "epoch"
    trajectory: Params | None = None  # (epochs + 1, …) each: the learned parameters, from the start to the end

    @property
    def best_params(self) -> Params:
        return self.best["val"].params

    @property
    def best_epoch(self) -> int:
        return self.best["val"].epoch

    def params_at(self, checkpoint: str) -> Params:
        """Parameters at the "last" epoch, or at the best one of a chooser: "val", "ood_val"."""
        if checkpoint == "last":
            return self.params
        if checkpoint not in self.best:
            known = ", ".join(map(repr, ("last", *self.best)))
            raise MethodError(f"this run has no checkpoint {checkpoint!r}; it has {known}")
        return self.best[checkpoint].params

    def bind(self, problem: Problem, classes: Sequence[str] | None = None, rows: int = 1) -> Method:
        """The method with this run's row, ready to predict; with other `classes`, to predict new names.

        `rows`: as many equal rows, for other parameters of the same run (`landscape.py`).
        """
        method = get_method(self.method)
        task = problem.task([self.environments])
        if classes is not None:
            task = replace(task, classes=tuple(classes))
        runs = Runs.stack(method.space, [self.config] * rows, [self.seed] * rows, problem.features.device)
        return method(task, runs)

    def predict(
        self,
        problem: Problem,
        features: Tensor,
        *,
        draws: int,
        checkpoint: str = "last",
        groups: Tensor | None = None,
    ) -> Predictive:
        return predict(self.bind(problem), self.params_at(checkpoint), features, draws, groups)


def train_runs(
    method_name: str,
    problem: Problem,
    runs: Sequence[Run],
    *,
    max_rows: int = 256,
    checkpoints: Path | None = None,
    progress: str | Callable[[int], None] | None = None,
    trajectory: bool = False,
    probe_every: int = 0,
) -> list[RunResult]:
    """Train every run, as few stacks as their settings and the memory allow; results come in the order of the runs.

    With `checkpoints` (a folder) a killed call continues. `progress` is the title of a progress bar, or is told
    how many runs × epochs were just finished; None: no bar.
    `trajectory` keeps the learned parameters of every epoch, and then no checkpoint is read or written: a continued
    training does not know where it came from. `probe_every`: as in `training.train`.
    """
    method = get_method(method_name)
    kept = None if trajectory else checkpoints
    results: list[RunResult | None] = [None] * len(runs)
    with epoch_bar(progress, sum(run.config.get("epochs", 0) for run in runs)) as advance:
        for rows in group_runs(method, problem, runs, max_rows):
            part = [runs[i] for i in rows]
            tick = partial(_advance, advance, len(part))
            trained = _train_stack(method, problem, part, kept, tick, trajectory, probe_every)
            for i, result in zip(rows, trained, strict=True):
                results[i] = result
    return results


def _advance(advance: Callable[[int], None], rows: int, epoch: int, epochs: int) -> None:
    advance(rows)


@contextlib.contextmanager
def epoch_bar(title: str | Callable[[int], None] | None, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over epochs × runs with the time left; without a title, nothing is shown."""
    if not isinstance(title, str):
        yield title or (lambda n: None)
        return
    with training_bar() as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)


def group_runs(method: type[Method], problem: Problem, runs: Sequence[Run], max_rows: int) -> Iterator[list[int]]:
    """Indices of runs that can share a stack: same settings, as many images, as many environments.

    A stack has at most `max_rows` rows, and no more than fit into memory (`Method.row_bytes`, `memory.py`).
    """
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        key = [settings_of(method.space, run.config), len(run.train), len(_train_environments(problem, run))]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(i)
    for rows in groups.values():
        size = min(max_rows, len(rows))
        if size > 1:
            size = min(size, _rows_that_fit(method, problem, runs[rows[0]], size))
        for at in range(0, len(rows), size):
            yield rows[at : at + size]


def _rows_that_fit(method: type[Method], problem: Problem, run: Run, wanted: int) -> int:
    """How many rows like this one a stack may have, up to `wanted`; else a power of two.

    A checkpoint is found again only when stacks are cut as before: a little less free memory must not change the cut.
    """
    bound, data, _ = bind_stack(method, problem, [run])
    fit = activation_budget(problem.features.device) // max(1, bound.row_bytes(training_samples(data)))
    return wanted if fit >= wanted else 1 << max(fit, 1).bit_length() - 1


def _train_environments(problem: Problem, run: Run) -> list[int]:
    return problem.places[run.train.cpu()].unique().tolist()


def bind_stack(
    method: type[Method], problem: Problem, runs: Sequence[Run]
) -> tuple[Method, StackData, list[tuple[str, ...]]]:
    """The method of a stack of runs, what it is trained on, and the words of each row's training environments."""
    seen = [_train_environments(problem, run) for run in runs]
    words = [tuple(problem.environment_words[e] for e in row) for row in seen]
    numbers = Runs.stack(
        method.space, [run.config for run in runs], [run.seed for run in runs], problem.features.device
    )
    return method(problem.task(words, training=True), numbers), stack_data(problem, runs, seen), words


def _train_stack(
    method: type[Method],
    problem: Problem,
    runs: Sequence[Run],
    checkpoints: Path | None,
    on_epoch: Callable[[int, int], None],
    trajectory: bool,
    probe_every: int,
) -> list[RunResult]:
    bound, data, words = bind_stack(method, problem, runs)
    # The identity hashes every feature, which takes longer than many a training: only where it is needed.
    identity = stack_identity(method.name, problem, runs) if checkpoints is not None else ""
    observed: list[Params] = []
    trained = train(
        bound,
        data,
        checkpoint=checkpoints / f"{identity[:24]}.safetensors" if checkpoints is not None else None,
        identity=identity,
        on_epoch=on_epoch,
        observe=(lambda _, params: observed.append(copies(params, bound.frozen))) if trajectory else None,
        probe_every=probe_every,
    )
    # Numbers go to the CPU together: one look at a GPU for each would take longer than many a training.
    curves, probes = (
        {name: values.cpu() for name, values in group.items()} for group in (trained.curves, trained.probes)
    )
    epochs = {name: best.epoch.tolist() for name, best in trained.best.items()}
    row = lambda tensors, r: {name: value[r : r + 1].clone() for name, value in tensors.items()}  # noqa: E731
    column = lambda tensors, r: {name: values[:, r].tolist() for name, values in tensors.items()}  # noqa: E731
    return [
        RunResult(
            method=method.name,
            config=run.config,
            seed=run.seed,
            environments=words[r],
            params=row(trained.params, r),
            best={name: Checkpoint(row(best.params, r), epochs[name][r]) for name, best in trained.best.items()},
            curves=column(curves, r),
            stopped=trained.stopped.get(r),
            seconds=trained.seconds / len(runs),
            probes={"epoch": list(trained.probe_epochs)} | column(probes, r) if probes else {},
            trajectory=_path_of(observed, r) if trajectory else None,
        )
        for r, run in enumerate(runs)
    ]


def copies(params: Params, leave_out: Sequence[str]) -> Params:
    """The parameters as they are now, without those named."""
    return {name: value.clone() for name, value in params.items() if name not in leave_out}


def _path_of(seen: Sequence[Params], r: int) -> Params:
    """One run's parameters over time, (epochs + 1, …) each, out of those of its stack at each epoch."""
    return {name: torch.stack([params[name][r] for params in seen]) for name in seen[0]}


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
    digest.update(json.dumps([method, words, configs, str(problem.precision)], sort_keys=True).encode())
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
