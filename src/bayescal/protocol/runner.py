"""From planned runs to records: leave out what is recorded, claim the rest stack by stack, train, score, write.

    plan ─► not yet recorded ─► claimed by this process ─► one stack ─► scores at each checkpoint ─► records

A kill loses at most the stack at hand, and of that only what its checkpoint does not have.
"""

import datetime
import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bayescal import __version__, metrics
from bayescal.data.datasets.base import Fold
from bayescal.methods import get_method
from bayescal.protocol.arena import Arena
from bayescal.protocol.entries import Entry
from bayescal.protocol.scoring import KEEP, finite, predict_rows, score
from bayescal.protocol.store import Record, Store
from bayescal.protocol.study import Drawn
from bayescal.space import Config, settings_of
from bayescal.stacks import Problem, Run, RunResult, group_runs, train_runs

if TYPE_CHECKING:
    from bayescal.cluster import Cluster

FORMAT = 2  # of records; part of every key, so records of another meaning are never taken for these
DRAWS = 20  # posterior draws of a prediction that is reported
PROBE_EVERY = 3  # epochs between looks at the gradient of each term
RENEW_SECONDS = 30.0
PATHS = ("word_vectors",)  # options that are files: the name counts, not where the file lies
# Rules look at one set, and report on another at the checkpoint that the first one chose.
REPORTED = {"val": ("test",), "ood_val": ("test",), "last": ("test_rest", "test")}

Extra = Callable[[Sequence[RunResult], "Planned"], list[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class Planned:
    """One run of an entry, and the key under which its record is or will be."""

    arena: Arena
    entry: Entry
    fold: Fold
    seed: int
    draw: Drawn
    purpose: str = ""  # sets apart runs that are scored differently, such as those on new names

    @property
    def key(self) -> str:
        arena, facts = self.arena, self.arena.facts
        content = [
            FORMAT, self.entry.method, portable(self.draw.config), self.seed, self.purpose, arena.dataset.name,
            self.fold.name, arena.sets(self.fold, self.seed).digest, facts.fingerprint, facts.views, DRAWS,
            arena.manifest.class_words, arena.manifest.environment_words,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]

    def run(self) -> Run:
        sets, rows = self.arena.sets(self.fold, self.seed), self.arena.feature_rows
        judged = {name: rows(images) for name, images in sets.judged.items()}
        return Run(self.draw.config, self.seed, self.arena.training_rows(sets.train), judged)


def precision_of(problem: Problem) -> str:
    """Of the text tower's layers in training, by name."""
    return str(problem.training_text.dtype).removeprefix("torch.")


def portable(config: Config) -> Config:
    """A config without this machine's folders."""
    return {name: Path(value).name if name in PATHS else value for name, value in config.items()}


def plan(arena: Arena, entry: Entry, draws: Sequence[Drawn], seeds: Sequence[int], purpose: str = "") -> list[Planned]:
    return [
        Planned(arena, entry, fold, seed, draw, purpose) for draw in draws for fold in arena.folds for seed in seeds
    ]


def run_all(
    store: Store,
    planned: Sequence[Planned],
    *,
    max_rows: int = 256,
    checkpoints: Path | None = None,
    advance: Callable[[int], None] = lambda row_epochs: None,
    trajectory: bool = False,
    extra: Extra | None = None,
    wait: Callable[[int], None] = lambda runs: time.sleep(2.0),
    cluster: "Cluster | None" = None,
) -> list[Record]:
    """The records of these runs, of one entry on one arena; what is missing is trained, or waited for.

    Runs that another living process has claimed are waited for, and taken over should it die. `extra` adds entries to
    the records from the trained runs; with `trajectory` these know their parameters at every epoch. With a `cluster`,
    stacks are cut into shards that its workers train; then there are no checkpoints, a lost shard is begun again.
    """
    by_key = {run.key: run for run in planned}
    finished = store.finished(list(by_key))
    missing = [key for key in by_key if key not in finished]
    while missing:
        rows = max_rows if cluster is None else min(max_rows, cluster.share(len(missing)))
        stacks = _stacks([by_key[key] for key in missing], missing, rows)
        if cluster is None:
            for keys in stacks:
                _run_stack(store, by_key, keys, checkpoints, advance, trajectory, extra)
        else:
            from bayescal.protocol.shards import run_shards

            run_shards(cluster, store, by_key, stacks, advance, trajectory, extra)
        finished = store.finished(missing)
        missing = [key for key in missing if key not in finished]
        if missing:
            wait(len(missing))
    return store.records(list(by_key))


def _run_stack(
    store: Store,
    by_key: Mapping[str, Planned],
    keys: Sequence[str],
    checkpoints: Path | None,
    advance: Callable[[int], None],
    trajectory: bool,
    extra: Extra | None,
) -> None:
    """Train and record those of these runs that no other process has."""
    mine = store.claim(keys)
    if not mine:
        return
    with store.releasing():
        part = [by_key[key] for key in mine]
        kept = checkpoints / hashlib.sha256("".join(mine).encode()).hexdigest()[:16] if checkpoints else None
        results = _train(store, part, kept, advance, trajectory)
        store.add(_records(part, mine, results, extra))
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)  # a checkpoint of what is recorded serves nobody


def row_epochs(planned: Sequence[Planned]) -> int:
    """How much there is to train: epochs summed over runs, the unit of the progress bar."""
    return sum(run.draw.config.get("epochs", 1) for run in planned)


def _stacks(planned: Sequence[Planned], keys: Sequence[str], max_rows: int) -> Iterator[list[str]]:
    """Keys of runs that are trained as one stack."""
    arena, method = planned[0].arena, get_method(planned[0].entry.method)
    for rows in group_runs(method, arena.problem, [run.run() for run in planned], max_rows):
        yield [keys[i] for i in rows]


def _train(
    store: Store,
    planned: Sequence[Planned],
    checkpoints: Path | None,
    advance: Callable[[int], None],
    trajectory: bool,
) -> list[RunResult]:
    renewed = time.monotonic()

    def tick(row_epochs: int) -> None:
        nonlocal renewed
        if time.monotonic() - renewed > RENEW_SECONDS:
            store.renew()
            renewed = time.monotonic()
        advance(row_epochs)

    runs = [run.run() for run in planned]
    return train_runs(
        planned[0].entry.method, planned[0].arena.problem, runs, max_rows=len(runs), checkpoints=checkpoints,
        progress=tick, probe_every=PROBE_EVERY, trajectory=trajectory,
    )  # fmt: skip


def _records(
    planned: Sequence[Planned], keys: Sequence[str], results: Sequence[RunResult], extra: Extra | None
) -> list[Record]:
    """One record per run. Runs of one fold and seed share their images, so they are scored together."""
    groups: dict[tuple[str, int], list[int]] = {}
    for i, run in enumerate(planned):
        groups.setdefault((run.fold.name, run.seed), []).append(i)
    records: list[Record | None] = [None] * len(planned)
    for rows in groups.values():
        part, first = [results[i] for i in rows], planned[rows[0]]
        started = time.perf_counter()
        scores = score_group(first, part)
        more = extra(part, first) if extra else [{}] * len(rows)
        seconds = (time.perf_counter() - started) / len(rows)
        for i, result, own, added in zip(rows, part, scores, more, strict=True):
            records[i] = _record(planned[i], keys[i], result, own, seconds) | added
    return records


def score_group(first: Planned, results: Sequence[RunResult]) -> list[dict[str, dict[str, Any]]]:
    """Scores of runs that share fold, seed and settings, by checkpoint."""
    arena, sets = first.arena, first.arena.sets(first.fold, first.seed)
    out: list[dict[str, dict[str, Any]]] = [{} for _ in results]
    for checkpoint, reported in REPORTED.items():
        if checkpoint not in ("last", *results[0].best) or (checkpoint != "last" and checkpoint not in sets.judged):
            continue
        name = next(candidate for candidate in reported if candidate in sets.judged)
        threshold = unsure_below(arena, results, checkpoint, sets.judged["val"])
        rows = arena.feature_rows(sets.judged[name])
        problem = arena.problem
        places = problem.environments[rows]
        probs = predict_rows(problem, results, checkpoint, problem.features[rows], DRAWS, places).probs
        names = (arena.manifest.classes, arena.manifest.environments)
        found = score(probs, problem.labels[rows], places, threshold, *names)
        for own, value in zip(out, found, strict=True):
            own[checkpoint] = {"set": name, **value}
    return out


def unsure_below(arena: Arena, results: Sequence[RunResult], checkpoint: str, val: np.ndarray) -> torch.Tensor:
    """The confidence below which to say "unsure", from the validation images of the training environments: (R,)."""
    problem, rows = arena.problem, arena.feature_rows(val)
    places = problem.environments[rows]
    probs = predict_rows(problem, results, checkpoint, problem.features[rows], DRAWS, places).probs
    return metrics.unsure_threshold(probs, problem.labels[rows], KEEP)


def _record(run: Planned, key: str, result: RunResult, scores: Mapping[str, Any], scoring: float) -> Record:
    arena, sets = run.arena, run.arena.sets(run.fold, run.seed)
    method = result.bind(arena.problem)
    return {
        "format": FORMAT,
        "key": key,
        "dataset": arena.dataset.name,
        "entry": run.entry.key,
        "method": run.entry.method,
        "purpose": run.purpose,
        "fold": run.fold.name,
        "train_environments": [arena.manifest.environments[e] for e in run.fold.train_environments],
        "seed": run.seed,
        "trial": run.draw.number,
        "config": portable(run.draw.config),
        "settings": portable(settings_of(get_method(run.entry.method).space, run.draw.config)),
        "shots": [arena.shots, arena.val_shots],
        "split": {
            "digest": sets.digest,
            "train": len(sets.train),
            **{name: len(rows) for name, rows in sets.judged.items()},
            "notes": list(sets.notes),
        },
        "backbone": {
            "name": arena.facts.name, "fingerprint": arena.facts.fingerprint, "views": arena.facts.views,
            "precision": precision_of(arena.problem),
        },
        "curves": {name: [_short(v) for v in values] for name, values in result.curves.items()},
        "probes": {name: [_short(v) for v in values] for name, values in result.probes.items()},
        "chosen": {name: checkpoint.epoch for name, checkpoint in result.best.items() if name in sets.judged},
        "scores": scores,
        "draws": DRAWS,
        "parameters": method.parameter_count(result.params),
        "stopped": result.stopped,
        "seconds": round(result.seconds + scoring, 4),
        "versions": versions(arena.device),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


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
