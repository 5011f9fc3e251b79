"""Stacks on a cluster: this process plans, claims and records; workers train and score.

    claimed stack ─► part (folds, seeds, trials) ─► worker: train, score ─► records ─► database, part by part

A worker calls the same functions as a run on one machine, on the same splits, and gets the same records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.records import Record
from bayescal.benchmark.runner import (
    GRADIENT_NORMS_EVERY,
    AddToRecord,
    Advance,
    PlannedRun,
    Stack,
    make_records,
    run_epochs,
)
from bayescal.benchmark.store import Store
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import MethodVariant
from bayescal.data.datasets.base import Fold
from bayescal.distributed.packing import Packed, PackedProblem, pack
from bayescal.training.stack import train_stack

if TYPE_CHECKING:
    from bayescal.distributed.ray_cluster import Cluster


@dataclass(frozen=True)
class ClusterTrainer:
    """Trains on the workers of a cluster. There are no checkpoints: a part whose worker died is begun again."""

    cluster: "Cluster"

    def share(self, runs: int) -> int:
        return self.cluster.share(runs)

    def train(
        self,
        store: Store,
        stacks: Sequence[Stack],
        *,
        advance: Advance,
        trajectory: bool,
        add_to_record: AddToRecord | None,
    ) -> None:
        """Claim each stack when a worker can take it, and record it when it comes back."""
        claimed = (mine for stack in stacks if (mine := stack.claim(store)) is not None)
        work = StackWork.of([run for stack in stacks for run in stack.planned], trajectory, add_to_record)
        with store.releasing():
            for part, records in self.cluster.scatter(work, map(StackPart.of, claimed)):
                store.add(records)
                advance(part.epochs)


@dataclass(frozen=True)
class StackPart:
    """A stack as it travels: what tells its runs apart."""

    runs: tuple[tuple[str, int, Trial], ...]  # fold, seed, trial
    epochs: int

    @classmethod
    def of(cls, stack: Stack) -> "StackPart":
        runs = tuple((run.fold.name, run.seed, run.trial) for run in stack.planned)
        return cls(runs, run_epochs(stack.planned))


@dataclass(frozen=True, eq=False)
class StackWork:
    """What a worker is sent to train and score stacks of one variant on one data set."""

    prepared: "PackedDataset"
    variant: MethodVariant
    purpose: str
    folds: dict[str, Fold]
    trajectory: bool
    add_to_record: Packed

    @classmethod
    def of(cls, planned: Sequence[PlannedRun], trajectory: bool, add_to_record: AddToRecord | None) -> "StackWork":
        first, folds = planned[0], {run.fold.name: run.fold for run in planned}
        prepared = PackedDataset.of(first.prepared)
        return cls(prepared, first.variant, first.purpose, folds, trajectory, pack(add_to_record))

    def to(self, device: str) -> "StackWorker":
        return StackWorker(self, self.prepared.unpacked(device), self.add_to_record.unpacked(device))


@dataclass(frozen=True, eq=False)
class StackWorker:
    """The same on a worker's device: called with a part, it gives the records."""

    sent: StackWork
    prepared: PreparedDataset
    add_to_record: AddToRecord | None

    def __call__(self, part: StackPart) -> list[Record]:
        sent = self.sent
        planned = [
            PlannedRun(self.prepared, sent.variant, sent.folds[fold], seed, trial, sent.purpose)
            for fold, seed, trial in part.runs
        ]
        results = train_stack(
            sent.variant.method, self.prepared.problem, [run.run() for run in planned],
            gradient_norms_every=GRADIENT_NORMS_EVERY, trajectory=sent.trajectory,
        )  # fmt: skip
        return make_records(planned, results, self.add_to_record)


@dataclass(frozen=True, eq=False)
class PackedDataset:
    """A prepared data set as it travels."""

    rest: PreparedDataset  # whose problem has no tensors
    problem: PackedProblem

    @classmethod
    def of(cls, prepared: PreparedDataset) -> "PackedDataset":
        """Images and their paths stay here, and so do content hashes: they are for drawing splits, which is done."""
        problem = PackedProblem.of(prepared.problem)
        manifest = replace(prepared.manifest, paths=("",) * len(prepared.manifest))
        return cls(replace(prepared, problem=problem.rest, manifest=manifest, hashes=()), problem)

    def unpacked(self, device: str) -> PreparedDataset:
        return replace(self.rest, problem=self.problem.unpacked(device))
