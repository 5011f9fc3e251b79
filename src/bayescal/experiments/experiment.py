"""What an experiment is, and the small steps from records to tables that all of them take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayescal.experiments.bench import Bench, Search
from bayescal.experiments.findings import Column, Figure, Section, Table, Value
from bayescal.experiments.published import is_papers
from bayescal.protocol.selection import Rule, get_rule, overall, per_fold
from bayescal.protocol.statistics import mean_and_error
from bayescal.protocol.store import Record

SPREAD = "± is the standard error over seeds"


@dataclass(frozen=True)
class Experiment:
    """`searches` says what has to be trained, `section` turns the records into tables and figures."""

    name: str
    title: str
    searches: Callable[[Bench], list[Search]]
    section: Callable[[Bench], Section]


def value(scores: Mapping[int, float] | Sequence[float]) -> Value:
    """Mean and standard error over seeds."""
    numbers = list(scores.values()) if isinstance(scores, Mapping) else list(scores)
    if not numbers:
        return Value(None, why="no run finished")
    mean, error = mean_and_error(numbers)
    return Value(float(mean), float(error) if np.isfinite(error) else None, len(numbers))


def rule_of(bench: Bench, dataset: str, name: str | None = None) -> Rule:
    return get_rule(name or bench.dataset(dataset).selection)


def scores(
    bench: Bench, search: Search, metric: str = "accuracy", rule: str | None = None
) -> dict[str, dict[int, float]]:
    """fold → seed → a metric of the chosen runs."""
    chosen_by = rule_of(bench, search.dataset, rule)
    return per_fold(bench.chosen(search, rule), lambda record: chosen_by.score(record, metric))


def overall_value(bench: Bench, search: Search, metric: str = "accuracy", rule: str | None = None) -> Value:
    found = overall(scores(bench, search, metric, rule))
    if not found and rule is not None:
        return Value(None, why=_why_none(bench, search, rule))
    return value(found)


def _why_none(bench: Bench, search: Search, rule: str) -> str:
    wanted = get_rule(rule).looks_at
    records = bench.records(search)
    if records and not any(wanted in record["curves"] for record in records):
        return "the data set has no validation images of that kind"
    return "no run finished"


def make_section(
    bench: Bench,
    experiment: str,
    title: str,
    lead: str,
    tables: Sequence[Table] = (),
    figures: Sequence[Figure] = (),
    limits: str = "",
) -> Section:
    """A section with the command, versions and date of this bench."""
    options = bench.options
    command = options.command or f"bayescal bench {experiment} --backbone {options.backbone}"
    if options.quick:
        limits = (
            f"This was a quick look: {options.trials} draws and seeds {', '.join(map(str, options.seeds))}. "
            "Differences of a few points mean nothing here. " + limits
        )
    return Section(
        experiment=experiment, title=title, lead=lead.strip(), command=command, versions=bench.versions(),
        made=bench.made(), tables=tuple(tables), figures=tuple(figures), limits=limits,
        notes=tuple(dict.fromkeys(bench.notes)),
    )  # fmt: skip


def published_columns(bench: Bench, columns: Sequence[Column]) -> list[Column]:
    """A column of the paper's numbers for each of ours, where the backbone is the paper's."""
    if not is_papers(bench.options.backbone):
        return []
    return [
        Column(f"{c.key}/paper", c.title, c.better, c.unit, c.digits, published=True, group="paper, RN50")
        for c in columns
    ]


def mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """Mean and standard error, position by position, of curves of equal length: one per seed."""
    table = np.array([[np.nan if v is None else v for v in curve] for curve in curves], dtype=np.float64)
    mean = table.mean(0)
    error = table.std(0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros_like(mean)
    return mean.tolist(), error.tolist()


def seed_curves(chosen: Sequence[Record], curve: Callable[[Record], Sequence[float]]) -> list[list[float]]:
    """One curve per seed: the mean over folds of the chosen runs' curves, cut to the shortest."""
    seeds: dict[int, list[Sequence[float]]] = {}
    for record in chosen:
        seeds.setdefault(record["seed"], []).append(curve(record))
    length = min((len(c) for curves in seeds.values() for c in curves), default=0)
    return [np.mean([c[:length] for c in curves], axis=0).tolist() for curves in seeds.values()]


def line(name: str, curves: Sequence[Sequence[float]], first: int = 1) -> dict[str, Any]:
    """A series of a `lines` figure from one curve per seed; x counts from `first`."""
    mean, error = mean_curve(curves)
    return {
        "name": name,
        "x": list(range(first, first + len(mean))),
        "y": mean,
        "error": error if len(curves) > 1 else None,
    }


def compare(ours: Value, theirs: Value, us: str, them: str) -> str:
    """One sentence on a difference of two accuracies, with its standard error where both have one."""
    if ours.mean is None or theirs.mean is None:
        return f"{us} and {them} cannot be compared here."
    gain = 100 * (ours.mean - theirs.mean)
    if ours.error is None and theirs.error is None:
        return f"{us} is at {100 * ours.mean:.1f} %, {them} at {100 * theirs.mean:.1f} % ({gain:+.1f})."
    error = 100 * np.hypot(ours.error or 0.0, theirs.error or 0.0)
    clear = "a clear difference" if abs(gain) > 2 * error else "within what chance explains"
    return (
        f"{us} is at {100 * ours.mean:.1f} %, {them} at {100 * theirs.mean:.1f} % ({gain:+.1f} ± {error:.1f}: {clear})."
    )
