"""What `fit` does by default, against every single method on the same images: all labelled images of a fold.

Not a search: nothing is chosen among trials, and no validation images are kept. A case is a fold and a seed; all cases
of a data set are trained together, as stacks. What was measured is kept as a file per data set and seed, which the
tables read.
"""

import hashlib
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.benchmark.bench import Bench, MissingRecordsError
from bayescal.benchmark.experiments.experiment import Experiment, make_section, value
from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.results import Column, Row, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.errors import BayescalWarning
from bayescal.estimator.artifact import AUTO
from bayescal.estimator.members import MEMBERS, MIXTURES, Member
from bayescal.estimator.stacked_training import Case, Stacked, train_mixtures
from bayescal.evaluation import metrics
from bayescal.evaluation.calibration import at_temperature
from bayescal.evaluation.stacking import mixture
from bayescal.methods import method_identity
from bayescal.training.runs import Run
from bayescal.training.stack import train_runs
from bayescal.util.atomic import write_text
from bayescal.util.checksum import check_seal, sealed
from bayescal.util.jsonable import jsonable, loads
from bayescal.util.regular import read_file

FORMAT = 1
SAMPLES = 20
# Methods with their own defaults, trained on the same images; those without gradient need no epochs chosen either.
SINGLES = (
    Member("coop", "CoOp", "coop", {"class_specific": False}),
    Member("coop-class", "CoOp, class-specific", "coop", {"class_specific": True}),
    Member("cal", "CAL", "cal", {"class_specific": False}),
    Member("cal-class", "CAL, class-specific", "cal", {"class_specific": True}),
    Member("bayes-cal", "Bayes-CAL, its default", "bayes-cal"),
    Member("taskres", "TaskRes", "taskres"),
    Member("clip-adapter", "CLIP-Adapter", "clip-adapter"),
    Member("tip-adapter-f", "Tip-Adapter-F", "tip-adapter-f"),
)
ROWS = {
    AUTO: "auto (what `fit` does)",
    "equal": "mean of its members",
    "bayes-cal-mixed": "Bayes-CAL, mixed",
    **{member.name: member.title for member in (*MEMBERS, *SINGLES)},
}
COLUMNS = (
    Column("accuracy", "accuracy", "high"),
    Column("worst", "worst environment", "high"),
    Column("nll", "NLL", "low", "", 3),
    Column("ece", "ECE", "low", "%"),
)
Measured = dict[str, dict[str, float]]  # row → metric → number


def searches(bench: Bench) -> list[Search]:
    return []


def train(bench: Bench) -> None:
    """Measure what has not been measured yet."""
    for data in bench.options.datasets:
        prepared = bench.sources.prepared(data)
        paths = {seed: _path(bench, data, seed) for seed in bench.options.seeds}
        missing = tuple(seed for seed, path in paths.items() if _cases(path) is None)
        if not missing:
            continue
        cases = measure(prepared, missing, data if bench.show else None)
        for seed in missing:
            own = [case for case in cases if case["seed"] == seed]
            paths[seed].parent.mkdir(parents=True, exist_ok=True)
            write_text(paths[seed], json.dumps(sealed({"cases": jsonable(own)}), allow_nan=False))


def _path(bench: Bench, data: str, seed: int) -> Path:
    """A file for everything that decides the outcome."""
    prepared = bench.sources.prepared(data)
    cases = [prepared.splits(fold, seed).digest for fold in prepared.folds]
    every = [*(member for own in MIXTURES.values() for member in own), *SINGLES]
    members = [[method_identity(member.method), asdict(member)] for member in every]
    words = [prepared.manifest.class_words, prepared.manifest.environment_words]
    about = [FORMAT, prepared.backbone_info.fingerprint, str(prepared.backbone_info.defaults), cases, members, words]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return bench.output / "auto" / f"{data}-{seed}-{digest}.json"


def measure(prepared: PreparedDataset, seeds: tuple[int, ...], progress: str | None) -> list[dict[str, Any]]:
    """Every case: metrics of every row on the test images, what was expected, and the weights."""
    problem, defaults = prepared.problem, prepared.backbone_info.defaults
    keys = [(fold, seed) for fold in prepared.folds for seed in seeds]
    splits = [prepared.splits(fold, seed) for fold, seed in keys]
    labelled = [
        prepared.feature_rows(np.concatenate([own.train, own.eval_sets["val"]])) for own in splits
    ]  # fmt: skip
    tests = [prepared.feature_rows(own.eval_sets["test"]) for own in splits]
    cases = [Case(images, seed) for images, (_, seed) in zip(labelled, keys, strict=True)]
    mixtures = train_mixtures(problem, defaults, cases, SAMPLES, MIXTURES, progress=progress)
    singles: list[dict[str, Tensor]] = [{} for _ in cases]
    for member in SINGLES:
        runs = [Run(member.config(defaults, len(case.train)), case.seed, case.train) for case in cases]
        for own, result, test in zip(singles, train_runs(member.method, problem, runs), tests, strict=True):
            own[member.name] = result.predict(problem, problem.features[test], samples=SAMPLES).probs[0]
    return [
        _case(prepared, fold.name, {name: own[i] for name, own in mixtures.items()}, test, single)
        for i, ((fold, _), test, single) in enumerate(zip(keys, tests, singles, strict=True))
    ]


@torch.no_grad()
def _case(
    prepared: PreparedDataset, fold: str, mixtures: dict[str, Stacked], test: Tensor, singles: dict[str, Tensor]
) -> dict[str, Any]:
    problem, stacked = prepared.problem, mixtures[AUTO]
    features, labels, groups = problem.features[test], problem.labels[test], problem.environments[test]
    said = {
        name: result.predict(problem, features, samples=SAMPLES).probs[0]
        for own in mixtures.values()
        for name, result in own.members.items()
    }
    members = {name: said[name] for name in stacked.members}
    mixed = {
        name: at_temperature(mixture(own.weights, torch.stack([said[k] for k in own.members])), own.temperature)
        for name, own in mixtures.items()
    }
    rows = {**mixed, "equal": torch.stack(list(members.values())).mean(0), **members, **singles}
    return {
        "fold": fold,
        "seed": stacked.case.seed,
        "images": len(stacked.case.train),
        "weights": dict(zip(members, stacked.weights.tolist(), strict=True)),
        "temperature": stacked.temperature,
        "left_out": "environments" if stacked.folds.by_environment else "folds",
        "expected": asdict(stacked.expected(prepared.manifest.classes)),
        "rows": {name: _metrics(own, labels, groups, prepared) for name, own in rows.items()},
    }


def _metrics(probs: Tensor, labels: Tensor, groups: Tensor, prepared: PreparedDataset) -> dict[str, float]:
    one = probs[None]
    return {
        "accuracy": float(metrics.accuracy(one, labels)),
        "worst": float(metrics.worst_group_accuracy(one, labels, groups, len(prepared.manifest.environments))),
        "nll": float(metrics.nll(one, labels)),
        "ece": float(metrics.ece(one, labels)),
    }


# --- tables ----------------------------------------------------------------------------------------------------------


def section(bench: Bench) -> Section:
    found = {data: _read(bench, data) for data in bench.options.datasets}
    tables = [_mean_table(bench, found), *(_table(bench, data, cases) for data, cases in found.items())]
    tables += [_estimates(bench, found), _weights(bench, found)]
    return make_section(bench, "auto", "What fit does by default", _lead(found), tables, limits=LIMITS)


LIMITS = (
    "All rows are trained on the same images, training and validation images of the protocol together; methods that "
    "choose an epoch or two numbers on validation images have none here and use their defaults. The members and their "
    "numbers were chosen on these data sets, by left-out training environments (docs/auto.md)."
)


def _read(bench: Bench, data: str) -> list[dict[str, Any]]:
    found = [_cases(_path(bench, data, seed)) for seed in bench.options.seeds]
    if any(cases is None for cases in found):
        raise MissingRecordsError(f"auto has not been measured on {data} yet: run `{bench.command('auto')}`")
    return [case for cases in found if cases is not None for case in cases]


def _cases(path: Path) -> list[dict[str, Any]] | None:
    """What was measured, from a file; None where there is none that is as it was written, which is said."""
    if not path.exists():
        return None
    try:
        content = loads(read_file(path))
        if isinstance(content, list):  # of before there was a checksum
            return content
        check_seal(content, required=True)
        return content["cases"]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"{path} is damaged: {error}. It is measured again", BayescalWarning, stacklevel=2)
        return None


def by_seed(cases: list[dict[str, Any]], row: str, metric: str) -> dict[int, float]:
    """Mean over folds of every seed; of "worst", the lowest."""
    found: dict[int, list[float]] = {}
    for case in cases:
        found.setdefault(case["seed"], []).append(case["rows"][row][metric])
    return {seed: float(min(own) if metric == "worst" else np.mean(own)) for seed, own in sorted(found.items())}


def rows_of(cases: list[dict[str, Any]]) -> dict[str, str]:
    """The rows that all cases have: with very many classes some members are not trained."""
    return {name: title for name, title in ROWS.items() if all(name in case["rows"] for case in cases)}


def _cells(cases: list[dict[str, Any]], row: str) -> dict[str, Value | str]:
    return {column.key: value(by_seed(cases, row, column.key)) for column in COLUMNS}


def _table(bench: Bench, data: str, cases: list[dict[str, Any]]) -> Table:
    rows = tuple(Row(title, _cells(cases, name)) for name, title in rows_of(cases).items())
    per_class = cases[0]["images"] / len(bench.sources.prepared(data).manifest.classes)
    note = f"{per_class:.0f} labelled images per class; mean over folds."
    return Table(f"auto/{data}", bench.dataset(data).title, COLUMNS, rows, note)


def _mean_table(bench: Bench, found: dict[str, list[dict[str, Any]]]) -> Table:
    """Every data set counts the same."""
    seeds = bench.options.seeds

    def mean(row: str, metric: str) -> Value:
        own = [by_seed(cases, row, metric) for cases in found.values()]
        return value({seed: float(np.mean([scores[seed] for scores in own])) for seed in seeds})

    everywhere = rows_of([case for cases in found.values() for case in cases])
    rows = tuple(Row(title, {c.key: mean(name, c.key) for c in COLUMNS}) for name, title in everywhere.items())
    title = f"Mean over {len(found)} data sets"
    return Table("auto", title, COLUMNS, rows, "Every data set counts the same.")


def _estimates(bench: Bench, found: dict[str, list[dict[str, Any]]]) -> Table:
    """What was expected of an unseen environment beside what came out there."""
    columns = (
        Column("expected", "expected"), Column("truth", "found"), Column("error", "mean |difference|", "low"),
        Column("covered", "inside the interval"), Column("width", "width of the interval"),
        Column("seen", "seen environments"), Column("cases", "cases", "", "", 0),
    )  # fmt: skip
    rows = []
    for data, cases in found.items():
        known = [case for case in cases if case["expected"]["unseen"] is not None]
        pairs = [(case["expected"], case["rows"]["auto"]["accuracy"]) for case in known]
        seen = [case["expected"]["seen"] for case in cases if case["expected"]["seen"] is not None]
        cells: dict[str, Value | str] = {
            "seen": Value(float(np.mean(seen)) if seen else None),
            "cases": Value(float(len(cases))),
        }
        if pairs:
            cells |= {
                "expected": Value(float(np.mean([e["unseen"] for e, _ in pairs]))),
                "truth": Value(float(np.mean([truth for _, truth in pairs]))),
                "error": Value(float(np.mean([abs(e["unseen"] - truth) for e, truth in pairs]))),
                "covered": Value(float(np.mean([e["low"] <= truth <= e["high"] for e, truth in pairs]))),
                "width": Value(float(np.mean([e["high"] - e["low"] for e, _ in pairs]))),
            }
        else:
            cells["expected"] = Value(None, why="one training environment")
        rows.append(Row(bench.dataset(data).title, cells, ranked=False))
    note = "Interval: 90 %. Cases: folds × seeds. With one training environment nothing is expected."
    return Table("auto/expected", "What was expected of unseen environments", columns, tuple(rows), note)


def _weights(bench: Bench, found: dict[str, list[dict[str, Any]]]) -> Table:
    columns = tuple(Column(data, bench.dataset(data).title) for data in found)

    def mean(member: str, cases: list[dict[str, Any]]) -> Value:
        return Value(float(np.mean([case["weights"].get(member, 0.0) for case in cases])))

    rows = tuple(
        Row(member.title, {data: mean(member.name, cases) for data, cases in found.items()}, ranked=False)
        for member in MEMBERS
    )
    return Table("auto/weights", "Weights of the members", columns, rows, "Mean over folds and seeds.")


def _lead(found: dict[str, list[dict[str, Any]]]) -> str:
    """How often auto is ahead of what it is made of, in words made from the numbers."""

    def mean(row: str, metric: str) -> float:
        return float(np.mean([np.mean(list(by_seed(cases, row, metric).values())) for cases in found.values()]))

    every = rows_of([case for cases in found.values() for case in cases])
    others = [name for name in every if name not in (*MIXTURES, "equal")]
    best = max(others, key=lambda name: mean(name, "accuracy"))
    surest = min(others, key=lambda name: mean(name, "nll"))
    return (
        f"Mean accuracy over data sets: auto {mean('auto', 'accuracy'):.1%}, the mean of its members "
        f"{mean('equal', 'accuracy'):.1%}, the best single method {mean(best, 'accuracy'):.1%} ({ROWS[best]}), "
        f"zero-shot {mean('zero-shot', 'accuracy'):.1%}. NLL: auto {mean('auto', 'nll'):.3f}, the mean of its members "
        f"{mean('equal', 'nll'):.3f}, the best single method {mean(surest, 'nll'):.3f} ({ROWS[surest]})."
    )


EXPERIMENT = Experiment("auto", "what fit does by default, against every single method", searches, section, train)
