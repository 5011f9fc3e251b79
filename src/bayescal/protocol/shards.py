"""Stacks on a cluster: this process plans, claims and records; workers train and score.

    claimed runs ─► shard (folds, seeds, draws) ─► worker: train, score ─► records ─► database, shard by shard

A worker calls the same functions as a run on one machine, on the same sets, and gets the same records.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bayescal.backbones.base import Backbone
from bayescal.cluster import Cluster
from bayescal.data.datasets.base import Fold
from bayescal.protocol import runner
from bayescal.protocol.arena import Arena
from bayescal.protocol.entries import Entry
from bayescal.protocol.store import Record, Store
from bayescal.protocol.study import Drawn
from bayescal.stacks import Problem, train_runs

_TENSORS = ("features", "views", "labels", "environments", "view_rows")


@dataclass(frozen=True)
class Shard:
    """A part of a stack, with what tells its runs apart."""

    keys: tuple[str, ...]
    runs: tuple[tuple[str, int, Drawn], ...]  # fold, seed, draw

    @classmethod
    def of(cls, planned: "Mapping[str, runner.Planned]") -> "Shard":
        return cls(tuple(planned), tuple((run.fold.name, run.seed, run.draw) for run in planned.values()))


@dataclass(eq=False)
class Training:
    """What a worker has to know to train and score shards of one entry on one arena."""

    arena: "_Travelling | Arena"
    entry: Entry
    purpose: str
    folds: dict[str, Fold]
    trajectory: bool
    extra: "runner.Extra | None"

    @classmethod
    def of(cls, planned: "Sequence[runner.Planned]", trajectory: bool, extra: "runner.Extra | None") -> "Training":
        first, folds = planned[0], {run.fold.name: run.fold for run in planned}
        extra = _with_arenas(extra, Arena, _Travelling.of)
        return cls(_Travelling.of(first.arena), first.entry, first.purpose, folds, trajectory, extra)

    def to(self, device: str) -> "Training":
        arrived = lambda arena: arena.arrived(device)  # noqa: E731
        return replace(self, arena=arrived(self.arena), extra=_with_arenas(self.extra, _Travelling, arrived))

    def __call__(self, shard: Shard) -> list[Record]:
        planned = [
            runner.Planned(self.arena, self.entry, self.folds[fold], seed, draw, self.purpose)
            for fold, seed, draw in shard.runs
        ]
        results = train_runs(
            self.entry.method, self.arena.problem, [run.run() for run in planned], max_rows=len(planned),
            probe_every=runner.PROBE_EVERY, trajectory=self.trajectory,
        )  # fmt: skip
        return runner._records(planned, shard.keys, results, self.extra)


@dataclass(eq=False)
class _Travelling:
    """An arena on its way. Features are arrays, which the workers of a node share instead of copying."""

    arena: Arena
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, arena: Arena) -> "_Travelling":
        if arena.device.type != "cpu":
            raise ValueError("with a cluster, the process that asks keeps its arena on the CPU; workers move it")
        problem = arena.problem
        arrays = {name: getattr(problem, name).numpy() for name in _TENSORS if getattr(problem, name) is not None}
        light = replace(problem, **dict.fromkeys(_TENSORS), tokenize=_without_images(problem.tokenize))
        manifest = replace(arena.manifest, paths=("",) * len(arena.manifest))  # images stay where they are
        # Sets that are planned are drawn already; contents are for drawing more.
        return cls(replace(arena, problem=light, manifest=manifest, hashes=()), arrays)

    def arrived(self, device: str) -> Arena:
        tensors = {name: _tensor(array).to(device) for name, array in self.arrays.items()}
        problem: Problem = replace(self.arena.problem, text=self.arena.problem.text.to(device), **tensors)
        return replace(self.arena, problem=problem)


def run_shards(
    cluster: Cluster,
    store: Store,
    by_key: "Mapping[str, runner.Planned]",
    stacks: Iterable[Sequence[str]],
    advance: Callable[[int], None],
    trajectory: bool,
    extra: "runner.Extra | None",
) -> None:
    """Train these stacks, claiming each when a worker can take it and recording it when it comes back."""
    renewed = time.monotonic()

    def tick() -> None:
        nonlocal renewed
        if time.monotonic() - renewed > runner.RENEW_SECONDS:
            store.renew()
            renewed = time.monotonic()

    claimed = (Shard.of({key: by_key[key] for key in mine}) for keys in stacks if (mine := store.claim(keys)))
    work = Training.of(list(by_key.values()), trajectory, extra)
    with store.releasing():
        for shard, records in cluster.scatter(work, claimed, tick):
            store.add(records)
            advance(runner.row_epochs([by_key[key] for key in shard.keys]))


def _with_arenas(extra: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`extra` may bring arenas of its own (base-to-new: the new classes): they travel in the same way."""
    if not isinstance(extra, partial):
        return extra
    return partial(extra.func, *(change(value) if isinstance(value, kind) else value for value in extra.args))


def _without_images(tokenize: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """A backbone's own `tokenize` holds the backbone; the image tower can stay."""
    owner = getattr(tokenize, "__self__", None)
    return replace(owner, visual=None).tokenize if isinstance(owner, Backbone) else tokenize


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Without a copy. The memory is shared and cannot be written to, which torch warns of; nothing here does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
