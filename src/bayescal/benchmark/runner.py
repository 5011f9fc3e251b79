"""From planned runs to records: leave out what is recorded, claim the rest stack by stack, train, score, write.

    plan ─► not yet recorded ─► claimed by this process ─► one stack ─► scores at each checkpoint ─► records

A kill loses at most the stack at hand, and of that only what its checkpoint does not have. Where stacks are trained is
the caller's choice: a `Trainer` is this process (`LocalTrainer`) or a cluster (`remote.ClusterTrainer`).
"""

import datetime
import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from bayescal import __version__
from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.records import Record, RecordedBackbone, Scores, SplitInfo
from bayescal.benchmark.store import Store
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import MethodVariant
from bayescal.data.datasets.base import Fold
from bayescal.evaluation.calibration import unsure_threshold
from bayescal.evaluation.scoring import score
from bayescal.methods import get_method, method_identity
from bayescal.methods.hyperparameters import Config, first_names, settings_of
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult, StackResult
from bayescal.training.stack import group_runs, train_stack
from bayescal.util.atomic import PAUSE, write_text
from bayescal.util.jsonable import finite

_RUNS = "runs"  # beside a checkpoint: the keys of the runs that it belongs to
KEY_FORMAT = 2  # part of every key: goes up when results change their meaning, so that old ones are not taken for new
POSTERIOR_SAMPLES = 20  # of a prediction that is reported
GRADIENT_NORMS_EVERY = 3  # epochs between looks at the gradient of each term
# Rules look at one set, and report on another at the checkpoint that the first one chose.
REPORTED = {"val": ("left_out", "test"), "ood_val": ("test",), "last": ("left_out", "test_rest", "test")}

LEAVE_ONE_OUT = "selection/leave-one-environment-out"  # the purpose of runs without a training environment

Advance = Callable[[float], None]  # told how many epochs × runs were just finished; parts of long ones, too


# --- what is to be trained -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a variant, and the key under which its record is or will be."""

    prepared: PreparedDataset
    variant: MethodVariant
    fold: Fold
    seed: int
    trial: Trial
    purpose: str = ""  # sets apart runs that are scored differently, such as those on new names

    @cached_property
    def key(self) -> str:
        prepared, info, method = self.prepared, self.prepared.backbone_info, self.variant.method
        # By the names that hyper-parameters had first: a record that was made before they were renamed still counts.
        config = first_names(method, portable(method, self.trial.config))
        content = [
            KEY_FORMAT, method_identity(method), config, self.seed, self.purpose, prepared.dataset.name,
            self.fold.name, prepared.splits(self.fold, self.seed).digest, info.fingerprint,
            f"{info.views} in turn" if info.views else 0,  # they were drawn with replacement once
            POSTERIOR_SAMPLES, prepared.manifest.class_words, prepared.manifest.environment_words,
            *file_contents(method, self.trial.config),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]

    @property
    def epochs(self) -> int:
        return max(1, get_method(self.variant.method).epochs_of(self.trial.config))

    def run(self) -> Run:
        splits, rows = self.prepared.splits(self.fold, self.seed), self.prepared.feature_rows
        eval_sets = {name: rows(images) for name, images in splits.eval_sets.items()}
        return Run(self.trial.config, self.seed, self.prepared.training_rows(splits.train), eval_sets)


class HasEpochs(Protocol):
    @property
    def epochs(self) -> int: ...


def plan(
    prepared: PreparedDataset, variant: MethodVariant, trials: Sequence[Trial], seeds: Sequence[int], purpose: str = ""
) -> list[PlannedRun]:
    """A run of every trial on every fold and seed; for `LEAVE_ONE_OUT`, on the inner folds of every fold."""
    inner = [own for fold in prepared.folds for own in fold.without_each_environment()]
    return [
        PlannedRun(prepared, variant, fold, seed, trial, purpose)
        for trial in trials
        for fold in (inner if purpose == LEAVE_ONE_OUT else prepared.folds)
        for seed in seeds
    ]


def run_epochs(planned: "Sequence[HasEpochs]") -> int:
    """How much there is to train: epochs summed over runs, the unit of the progress bar."""
    return sum(run.epochs for run in planned)


def portable(method: str, config: Config) -> Config:
    """A config without this machine's folders."""
    files = get_method(method).file_options
    return {name: Path(value).name if name in files else value for name, value in config.items()}


def file_contents(method: str, config: Config) -> list[str]:
    """The content hashes of the files that a config names: another file of the same name makes another run."""
    files = [Path(config[name]) for name in get_method(method).file_options if config.get(name)]
    return [_content_of(file, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]


@lru_cache
def _content_of(file: Path, changed: int, size: int) -> str:
    """SHA-256 of a file as it was at that time."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, eq=False)
class Stack:
    """Planned runs that are trained together, and the same as training takes them."""

    planned: tuple[PlannedRun, ...]
    runs: tuple[Run, ...]

    def claim(self, store: Store) -> "Stack | None":
        """Those of these runs that no other process has, now taken by this one; None: there are none."""
        mine = set(store.claim([run.key for run in self.planned]))
        kept = [i for i, run in enumerate(self.planned) if run.key in mine]
        return Stack(tuple(self.planned[i] for i in kept), tuple(self.runs[i] for i in kept)) if kept else None


def make_stacks(planned: Sequence[PlannedRun], max_runs: int) -> list[Stack]:
    """Runs of one variant on one prepared data set, cut into stacks of at most `max_runs`."""
    method, problem = get_method(planned[0].variant.method), planned[0].prepared.problem
    runs = [run.run() for run in planned]
    groups = group_runs(method, problem, runs, max_runs)
    return [Stack(tuple(planned[i] for i in group), tuple(runs[i] for i in group)) for group in groups]


# --- training --------------------------------------------------------------------------------------------------------


class AddToRecord(Protocol):
    """Measures more of trained runs that share fold, seed and settings: further fields of each one's record.

    One that holds large tensors is `distributed.packing.Portable`, so that it can be sent to the workers of a cluster.
    """

    def __call__(self, results: StackResult, first: PlannedRun, /) -> list[dict[str, Any]]: ...


class Trainer(Protocol):
    """Where stacks are trained."""

    def share(self, runs: int) -> int:
        """The most of so many runs that one stack should have."""
        ...

    def train(
        self,
        store: Store,
        stacks: Sequence[Stack],
        *,
        advance: Advance,
        trajectory: bool,
        add_to_record: AddToRecord | None,
    ) -> None:
        """Claim, train and record these stacks; runs that another process has are left to it."""
        ...


@dataclass(frozen=True)
class LocalTrainer:
    """Trains in this process, one stack after the other. With `checkpoints` (a folder) a killed stack continues."""

    checkpoints: Path | None = None

    def share(self, runs: int) -> int:
        return runs

    def train(
        self,
        store: Store,
        stacks: Sequence[Stack],
        *,
        advance: Advance,
        trajectory: bool,
        add_to_record: AddToRecord | None,
    ) -> None:
        for stack in stacks:
            mine = stack.claim(store)
            if mine is None:
                continue
            with store.releasing():
                folder = self._folder(mine)
                if folder is not None:
                    with suppress(OSError):  # without a checkpoint the training is fine, it only cannot be continued
                        folder.mkdir(parents=True, exist_ok=True)
                        write_text(folder / _RUNS, "\n".join(run.key for run in mine.planned))
                results = _train(mine, folder, advance, trajectory)
                store.add(make_records(mine.planned, results, add_to_record))
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)  # what is recorded needs no checkpoint

    def _folder(self, stack: Stack) -> Path | None:
        """Where the checkpoint of these very runs is."""
        if self.checkpoints is None:
            return None
        keys = "".join(run.key for run in stack.planned)
        return self.checkpoints / hashlib.sha256(keys.encode()).hexdigest()[:16]


def clear_checkpoints(folder: Path, store: Store) -> None:
    """Remove the checkpoints of runs that are all recorded: whoever trained them was killed just before it could.

    A folder that holds nothing yet was made by a process that was killed just then, or it is just being made.
    """
    for stack in folder.glob("*/"):
        with suppress(OSError):
            if (stack / _RUNS).exists():
                keys = (stack / _RUNS).read_text().split()
                over = len(store.finished(keys)) == len(set(keys))
            else:
                over = not any(stack.glob("[!.]*")) and time.time() - stack.stat().st_mtime > PAUSE
            if over:
                shutil.rmtree(stack, ignore_errors=True)


def run_all(
    store: Store,
    planned: Sequence[PlannedRun],
    *,
    trainer: Trainer | None = None,
    max_runs: int = 256,
    advance: Advance = lambda run_epochs: None,
    trajectory: bool = False,
    add_to_record: AddToRecord | None = None,
    wait: Callable[[int], None] = lambda runs: time.sleep(2.0),
) -> list[Record]:
    """The records of these runs, of one variant on one prepared data set; what is missing is trained, or waited for.

    Runs that another living process has claimed are waited for, and taken over should it die. `trainer`: by default
    this process, without checkpoints. With `trajectory`, the runs that `add_to_record` sees know their parameters at
    every epoch.
    """
    trainer = trainer or LocalTrainer()
    by_key = {run.key: run for run in planned}
    finished = store.finished(list(by_key))
    missing = [key for key in by_key if key not in finished]
    while missing:
        stacks = make_stacks([by_key[key] for key in missing], min(max_runs, trainer.share(len(missing))))
        trainer.train(store, stacks, advance=advance, trajectory=trajectory, add_to_record=add_to_record)
        finished = store.finished(missing)
        missing = [key for key in missing if key not in finished]
        if missing:
            wait(len(missing))
    return store.records(list(by_key))


def _train(stack: Stack, checkpoints: Path | None, advance: Advance, trajectory: bool) -> StackResult:
    first = stack.planned[0]
    return train_stack(
        first.variant.method, first.prepared.problem, stack.runs, checkpoints=checkpoints,
        progress=advance, gradient_norms_every=GRADIENT_NORMS_EVERY, trajectory=trajectory,
    )  # fmt: skip


# --- from results to records -----------------------------------------------------------------------------------------


def make_records(
    planned: Sequence[PlannedRun], results: StackResult, add_to_record: AddToRecord | None = None
) -> list[Record]:
    """One record per run. Runs of one fold and seed share their images, so they are scored together."""
    groups: dict[tuple[str, int], list[int]] = {}
    for i, run in enumerate(planned):
        groups.setdefault((run.fold.name, run.seed), []).append(i)
    records: dict[int, Record] = {}
    for members in groups.values():
        part, first = results.take(members), planned[members[0]]
        started = time.perf_counter()
        scores = score_group(first, part)
        more = add_to_record(part, first) if add_to_record else [{}] * len(members)
        seconds = (time.perf_counter() - started) / len(members)
        for i, result, own, added in zip(members, part, scores, more, strict=True):
            records[i] = replace(_record(planned[i], result, own, seconds), **added)
    return [records[i] for i in range(len(planned))]


def score_group(first: PlannedRun, results: StackResult) -> list[dict[str, Scores]]:
    """Scores of runs that share fold, seed and settings, by checkpoint."""
    prepared, splits = first.prepared, first.prepared.splits(first.fold, first.seed)
    problem, out = prepared.problem, [dict[str, Scores]() for _ in results]
    for checkpoint, reported in REPORTED.items():
        if checkpoint != "last" and not (checkpoint in results.best and checkpoint in splits.eval_sets):
            continue
        name = next(candidate for candidate in reported if candidate in splits.eval_sets)
        threshold = unsure_below(prepared, results, checkpoint, splits.eval_sets["val"])
        rows = prepared.feature_rows(splits.eval_sets[name])
        groups = problem.environments[rows]
        probs = results.predict(
            problem, problem.features[rows], samples=POSTERIOR_SAMPLES, checkpoint=checkpoint, groups=groups
        ).probs
        names = (prepared.manifest.classes, prepared.manifest.environments)
        found = score(probs, problem.labels[rows], groups, threshold, *names)
        for own, values in zip(out, found, strict=True):
            own[checkpoint] = replace(values, eval_set=name)
    return out


def unsure_below(prepared: PreparedDataset, results: StackResult, checkpoint: str, val: np.ndarray) -> torch.Tensor:
    """The confidence below which to say "unsure", from the validation images of the training environments: (R,)."""
    problem, rows = prepared.problem, prepared.feature_rows(val)
    groups = problem.environments[rows]
    probs = results.predict(
        problem, problem.features[rows], samples=POSTERIOR_SAMPLES, checkpoint=checkpoint, groups=groups
    ).probs
    return unsure_threshold(probs, problem.labels[rows])


def _record(run: PlannedRun, result: RunResult, scores: Mapping[str, Scores], scoring: float) -> Record:
    prepared, splits = run.prepared, run.prepared.splits(run.fold, run.seed)
    info = prepared.backbone_info
    sizes = {name: len(images) for name, images in splits.eval_sets.items()}
    return Record(
        key=run.key,
        dataset=prepared.dataset.name,
        variant=run.variant.key,
        method=run.variant.method,
        purpose=run.purpose,
        fold=run.fold.name,
        train_environments=tuple(
            prepared.manifest.environments[e] for e in run.fold.train_environments if e != run.fold.left_out
        ),
        seed=run.seed,
        trial=run.trial.number,
        config=portable(run.variant.method, run.trial.config),
        settings=portable(run.variant.method, settings_of(result.method.space, run.trial.config)),
        shots=prepared.shots,
        val_shots=prepared.val_shots,
        split=SplitInfo(splits.digest, len(splits.train), sizes, splits.notes),
        backbone=RecordedBackbone(info.name, info.fingerprint, info.views, precision_of(prepared.problem)),
        curves={name: [_short(v) for v in values] for name, values in result.curves.items()},
        gradient_norms={name: [_short(v) for v in values] for name, values in result.gradient_norms.items()},
        chosen={name: checkpoint.epoch for name, checkpoint in result.best.items() if name in splits.eval_sets},
        scores=dict(scores),
        samples=POSTERIOR_SAMPLES,
        parameters=result.bind(prepared.problem).parameter_count(result.params),
        stopped=result.stopped,
        seconds=round(result.seconds + scoring, 4),
        versions=versions(prepared.device),
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def precision_of(problem: Problem) -> str:
    """Of the text tower's layers in training, by name."""
    return str(problem.training_text.dtype).removeprefix("torch.")


def versions(device: torch.device | str = "cpu") -> dict[str, str]:
    on = torch.device(device)
    return {
        "bayescal": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(on) if on.type == "cuda" else f"{platform.machine()} CPU",
    }


def _short(value: float) -> float | None:
    """Six digits are more than any curve shows; JSON has no NaN."""
    number = finite(value)
    return None if number is None else float(f"{number:.6g}")
