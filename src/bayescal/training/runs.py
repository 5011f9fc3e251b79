"""Runs, and what comes out of them: the result of a stack, and one run's view of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import torch
from torch import Tensor

from bayescal.engine.params import Params
from bayescal.errors import MethodError
from bayescal.methods.contract import Method, Predictive, Runs, predict
from bayescal.methods.hyperparameters import Config
from bayescal.training.problem import Problem

LAST = "last"  # the checkpoint at the end of training; the others are named by the set that chose them
HELD_NUMBERS = 1 << 25  # probabilities (runs × samples × images × classes) that a prediction holds at once
HELD_IMAGES = 4096  # a method predicts no more images than about these at once


@dataclass(frozen=True)
class Run:
    """One training: a method's hyper-parameters, a seed, and the images it may use.

    Parameters
    ----------
    config : dict
        Every hyper-parameter of the method (`bayescal.methods.hyperparameters.default_config`).
    seed : int
        Fixes every random number of the run.
    train : Tensor
        (n,), images to learn from, as indices into the problem's features.
    eval_sets : mapping of str to Tensor
        Name → images to measure the accuracy on after every epoch. "val" and "ood_val" each choose a checkpoint: the
        parameters of their best epoch.

    Examples
    --------
    >>> import torch
    >>> from bayescal import Run, get_method, load_backbone
    >>> from bayescal.methods.hyperparameters import default_config
    >>> config = default_config(get_method("coop").space, load_backbone("mini").defaults, epochs=5)
    >>> run = Run(config, seed=1, train=torch.tensor([0, 1, 2, 3]), eval_sets={"val": torch.tensor([4, 5])})
    >>> run.config["epochs"], len(run.train)
    (5, 4)
    """

    config: Config
    seed: int
    train: Tensor  # (n,)
    eval_sets: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A run's parameters, (1, …) each, at the end of an epoch (counted from 1; 0: before the first)."""

    params: Params
    epoch: int


@dataclass(frozen=True)
class RunResult:
    """What a run learned and how it went. Parameters are (1, …): usually views of those of its stack."""

    method: type[Method]
    config: Config
    seed: int
    environments: tuple[str, ...]  # words of the training environments
    params: Params
    best: dict[str, Checkpoint]  # by metric; "val" is always there: without such a set, the last epoch
    curves: dict[str, list[float]]
    stopped: str | None
    seconds: float
    # Gradient norms by loss term, and under "epoch" when they were measured.
    gradient_norms: dict[str, list[float]] = field(default_factory=dict)
    trajectory: Params | None = None  # (epochs + 1, …) each: the learned parameters, from the start to the end

    @property
    def best_params(self) -> Params:
        return self.best["val"].params

    @property
    def best_epoch(self) -> int:
        return self.best["val"].epoch

    def params_at(self, checkpoint: str) -> Params:
        """Parameters at the "last" epoch, or at the best one of a metric: "val", "ood_val"."""
        _check_checkpoint(checkpoint, self.best)
        return self.params if checkpoint == LAST else self.best[checkpoint].params

    def bind(self, problem: Problem, classes: Sequence[str] | None = None, copies: int = 1) -> Method:
        """The method with this run's numbers, ready to predict; with other `classes`, to predict new names.

        `copies`: as many equal runs, for other parameters of the same run (`loss_landscape.py`).
        """
        return _bind(self.method, problem, [self.config] * copies, [self.seed] * copies, [self.environments], classes)

    def predict(
        self,
        problem: Problem,
        features: Tensor,
        *,
        samples: int,
        checkpoint: str = LAST,
        groups: Tensor | None = None,
    ) -> Predictive:
        """Predictions (1, N, C) on images (N, D); arguments as in `StackResult.predict`."""
        return predict(self.bind(problem), self.params_at(checkpoint), features, samples, groups)


@dataclass(frozen=True)
class StackCheckpoint:
    """The parameters of R runs, (R, …) each, each at an epoch of its own."""

    params: Params
    epochs: tuple[int, ...]  # R


@dataclass(frozen=True, eq=False)
class StackResult(Sequence[RunResult]):
    """What the R runs of a stack learned and how it went.

    `stack[r]` is one run's view of it and `stack[a:b]` the view of some: nothing is copied. `take` picks any runs.
    """

    method: type[Method]
    configs: tuple[Config, ...]
    seeds: tuple[int, ...]
    environments: tuple[tuple[str, ...], ...]  # words of each run's training environments
    params: Params  # (R, …) each
    best: dict[str, StackCheckpoint]  # by metric; "val" is always there: without such a set, the last epoch
    curves: dict[str, Tensor]  # (epochs, R) each, on the CPU
    stopped: tuple[str | None, ...]  # why a run stopped before the end
    seconds: float  # per run
    gradient_norms: dict[str, Tensor] = field(default_factory=dict)  # by loss term, (P, R) each, on the CPU
    gradient_norm_epochs: tuple[int, ...] = ()  # P: epochs finished when the norms were measured
    trajectory: Params | None = None  # (epochs + 1, R, …) each: the learned parameters, from the start to the end

    @classmethod
    def of(cls, results: Sequence[RunResult]) -> "StackResult":
        """Runs of one method and with the same settings, wherever they were trained, as a stack of their own.

        Parameters are copied, so that they do not keep those of the stacks they come from.
        """
        first = results[0]
        join = lambda params: {name: torch.cat([p[name] for p in params]) for name in params[0]}  # noqa: E731
        return cls(
            method=first.method,
            configs=tuple(result.config for result in results),
            seeds=tuple(result.seed for result in results),
            environments=tuple(result.environments for result in results),
            params=join([result.params for result in results]),
            best={
                name: StackCheckpoint(
                    join([result.best[name].params for result in results]),
                    tuple(result.best[name].epoch for result in results),
                )
                for name in first.best
            },
            curves={
                name: torch.tensor([result.curves[name] for result in results], dtype=torch.float64).T
                for name in first.curves
            },
            stopped=tuple(result.stopped for result in results),
            seconds=sum(result.seconds for result in results) / len(results),
        )

    def __len__(self) -> int:
        return len(self.seeds)

    @overload
    def __getitem__(self, run: int) -> RunResult: ...

    @overload
    def __getitem__(self, run: slice) -> "StackResult": ...

    def __getitem__(self, run: int | slice) -> "RunResult | StackResult":
        if isinstance(run, slice):
            return self.take(run)
        r = range(len(self))[run]  # refuses what is out of range, counts negative numbers from the end
        own = lambda params: {name: value[r : r + 1] for name, value in params.items()}  # noqa: E731
        column = lambda points: {name: values[:, r].tolist() for name, values in points.items()}  # noqa: E731
        epochs: list[float] = list(self.gradient_norm_epochs)
        return RunResult(
            method=self.method,
            config=self.configs[r],
            seed=self.seeds[r],
            environments=self.environments[r],
            params=own(self.params),
            best={name: Checkpoint(own(best.params), best.epochs[r]) for name, best in self.best.items()},
            curves=column(self.curves),
            stopped=self.stopped[r],
            seconds=self.seconds,
            gradient_norms={"epoch": epochs, **column(self.gradient_norms)} if self.gradient_norms else {},
            trajectory=None if self.trajectory is None else {n: path[:, r] for n, path in self.trajectory.items()},
        )

    def take(self, runs: Sequence[int] | slice) -> "StackResult":
        """Some of the runs as a stack: views of a slice, copies of any others."""
        numbers = list(range(len(self))[runs] if isinstance(runs, slice) else runs)
        own = lambda params: {name: value[runs] for name, value in params.items()}  # noqa: E731
        columns = lambda points: {name: values[:, runs] for name, values in points.items()}  # noqa: E731
        pick = lambda values: tuple(values[r] for r in numbers)  # noqa: E731
        return replace(
            self,
            configs=pick(self.configs),
            seeds=pick(self.seeds),
            environments=pick(self.environments),
            params=own(self.params),
            best={name: StackCheckpoint(own(best.params), pick(best.epochs)) for name, best in self.best.items()},
            curves=columns(self.curves),
            stopped=pick(self.stopped),
            gradient_norms=columns(self.gradient_norms),
            trajectory=None if self.trajectory is None else columns(self.trajectory),
        )

    def params_at(self, checkpoint: str) -> Params:
        """Parameters (R, …) at the "last" epoch, or at each run's best one by a metric: "val", "ood_val"."""
        _check_checkpoint(checkpoint, self.best)
        return self.params if checkpoint == LAST else self.best[checkpoint].params

    def bind(self, problem: Problem, classes: Sequence[str] | None = None) -> Method:
        """The method with the numbers of all runs, ready to predict; with other `classes`, to predict new names."""
        return _bind(self.method, problem, self.configs, self.seeds, self.environments, classes)

    def predict(
        self,
        problem: Problem,
        features: Tensor,
        *,
        samples: int,
        checkpoint: str = LAST,
        groups: Tensor | None = None,
        classes: Sequence[str] | None = None,
    ) -> Predictive:
        """Predictions (R, N, C) of all runs on the same images (N, D), a bounded number of runs at a time.

        `samples` of the posterior; 0: its mean. `groups` (N,) numbers the environment of each image, for methods that
        read it off a batch. With other `classes`: predictions among those names.
        """
        n_classes = len(classes or problem.class_words)
        if not len(features):
            return Predictive(features.new_zeros(len(self), 0, n_classes), features.new_zeros(len(self), 0))
        parts = [
            predict(part.bind(problem, classes), part.params_at(checkpoint), features, samples, groups)
            for part in self._parts(HELD_NUMBERS // (max(1, samples) * min(len(features), HELD_IMAGES) * n_classes))
        ]
        return Predictive(torch.cat([p.probs for p in parts]), torch.cat([p.expected_entropy for p in parts]))

    def _parts(self, size: int) -> Iterator["StackResult"]:
        for at in range(0, len(self), max(1, size)):
            yield self[at : at + max(1, size)]


def _check_checkpoint(name: str, best: Iterable[str]) -> None:
    if name not in (known := (LAST, *best)):
        raise MethodError(f"this run has no checkpoint {name!r}; it has {', '.join(map(repr, known))}")


def _bind(
    method: type[Method],
    problem: Problem,
    configs: Sequence[Config],
    seeds: Sequence[int],
    environments: Sequence[Sequence[str]],
    classes: Sequence[str] | None,
) -> Method:
    task = problem.task(environments)
    if classes is not None:
        task = replace(task, classes=tuple(classes))
    return method(task, Runs.stack(method.space, configs, seeds, problem.features.device))
