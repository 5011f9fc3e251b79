"""What an experiment is, and the small steps from records to tables that all of them take."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments.published import is_papers
from bayescal.benchmark.records import Record
from bayescal.benchmark.results import Column, Figure, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant
from bayescal.evaluation.selection import Rule, get_rule, overall, per_fold
from bayescal.evaluation.statistics import mean_and_error, student_t

SPREAD = "± is the standard error over seeds."


@dataclass(frozen=True)
class Experiment:
    """`searches` says what has to be trained, `section` turns the records into tables and figures.

    `train` does work that is not a search, and keeps the result where `section` reads it.
    """

    name: str
    title: str
    searches: Callable[[Bench], list[Search]]
    section: Callable[[Bench], Section]
    train: Callable[[Bench], None] | None = None


def value(scores: Mapping[int, float] | Sequence[float], seeds: Sequence[int] | None = None) -> Value:
    """Mean and standard error over seeds. `seeds`: those that finished, where a metric is not defined for each."""
    numbers = list(scores.values()) if isinstance(scores, Mapping) else list(scores)
    if not numbers:
        return Value(None, why="no run finished")
    mean, error = mean_and_error(numbers)
    own = tuple(scores) if isinstance(scores, Mapping) else ()
    of = own if seeds is None else tuple(seeds)
    return Value(float(mean), float(error) if np.isfinite(error) else None, len(numbers), seeds=of)


def finished_seeds(chosen: Sequence[Record], folds: Collection[str]) -> list[int]:
    """Seeds with a chosen run in every fold."""
    return list(overall(per_fold(chosen, lambda record: 0.0), folds))


def rule_of(bench: Bench, dataset: str, name: str | None = None) -> Rule:
    return get_rule(name or bench.dataset(dataset).selection)


def scores(
    bench: Bench, search: Search, metric: str = "accuracy", rule: str | None = None
) -> dict[str, dict[int, float]]:
    """fold → seed → a metric of the chosen runs."""
    chosen_by = rule_of(bench, search.dataset, rule)
    return per_fold(bench.chosen(search, rule), lambda record: chosen_by.score(record, metric))


def overall_value(bench: Bench, search: Search, metric: str = "accuracy", rule: str | None = None) -> Value:
    by_fold = scores(bench, search, metric, rule)
    folds = {record.fold for record in bench.records(search)}
    found = overall(by_fold, folds)
    seeds = finished_seeds(bench.chosen(search, rule), folds)
    return (
        value(found, seeds) if found else Value(None, why=_why_none(bench, search, rule, sorted(folds - set(by_fold))))
    )


def seed_scores(bench: Bench, data: str, variant: str) -> dict[int, float]:
    """Accuracy by seed of a variant's chosen runs, mean over folds."""
    search = Search(data, get_variant(variant))
    return overall(scores(bench, search), {record.fold for record in bench.records(search)})


def _why_none(bench: Bench, search: Search, rule: str | None, empty: Sequence[str]) -> str:
    wanted = rule_of(bench, search.dataset, rule).looks_at
    records = bench.records(search)
    if records and not any(wanted in record.curves for record in records):
        return "the data set has no validation images of that kind"
    if bench.chosen(search, rule) and empty:
        return f"not defined in {', '.join(empty)}"
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
    if options.quick:
        limits = (
            f"This was a quick look: {options.trials} trials and seeds {', '.join(map(str, options.seeds))}. "
            "Differences of a few points mean nothing here. " + limits
        )
    return Section(
        experiment=experiment, title=title, lead=lead.strip(), command=bench.command(experiment),
        versions=bench.versions(), made=bench.made(),
        tables=tuple(explained(table.with_equal_seeds()) for table in tables), figures=tuple(figures), limits=limits,
        notes=tuple(dict.fromkeys(bench.notes)),
    )  # fmt: skip


def explained(table: Table) -> Table:
    """With the meaning of ± below it, if it has one: the numbers of a single seed do not."""
    return replace(table, note=f"{table.note} {SPREAD}".strip()) if table.has_errors else table


def published_columns(bench: Bench, columns: Sequence[Column]) -> list[Column]:
    """A column of the paper's numbers for each of ours, where the backbone is the paper's."""
    if not is_papers(bench.options.backbone):
        return []
    return [
        Column(f"{c.key}/paper", c.title, c.better, c.unit, c.digits, published=True, group="paper, RN50")
        for c in columns
    ]


def mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """Mean and standard error, point by point, of curves of equal length, one per seed; NaN where one has no number."""
    table = _numbers(curves)
    mean = table.mean(0)
    error = table.std(0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros_like(mean)
    return mean.tolist(), error.tolist()


def seed_curves(chosen: Sequence[Record], curve: Callable[[Record], Sequence[float | None]]) -> list[list[float]]:
    """One curve per seed: the mean over folds of the chosen runs' curves, cut to the shortest."""
    seeds: dict[int, list[Sequence[float | None]]] = {}
    for record in chosen:
        seeds.setdefault(record.seed, []).append(curve(record))
    length = min((len(c) for curves in seeds.values() for c in curves), default=0)
    return [_numbers([c[:length] for c in curves]).mean(0).tolist() for curves in seeds.values()]


def _numbers(curves: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Curves as a table; None, where a curve has no number, as NaN."""
    return np.array([[np.nan if v is None else v for v in curve] for curve in curves], dtype=np.float64)


def line(
    name: str, curves: Sequence[Sequence[float | None]], x: Sequence[float | None] | None = None
) -> dict[str, Any]:
    """A series of a `lines` figure from one curve per seed, where all have a number; x: by default 1, 2, 3 …"""
    mean, error = mean_curve(curves)
    points = zip(range(1, len(mean) + 1) if x is None else x[: len(mean)], mean, error, strict=True)
    kept = [point for point in points if np.isfinite(point[1])]
    xs, ys, errors = (list(column) for column in zip(*kept, strict=True)) if kept else ([], [], [])
    return {"name": name, "x": xs, "y": ys, "error": errors if len(curves) > 1 else None}


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Value:
    """Mean difference over the seeds that both have: seeds share their images, so the pairs are compared."""
    return value([ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))])


def is_clear(gain: Value) -> bool:
    """Whether a mean difference is larger than chance explains at 95 %, by Student's t over the seeds."""
    if gain.mean is None or gain.error is None or not gain.n:
        return False
    return abs(gain.mean) > student_t(gain.n) * gain.error


def in_words(gain: Value) -> str:
    """ "+1.6 ± 0.3, clear" """
    if gain.mean is None:
        return "not comparable"
    if gain.error is None:
        return points(gain.mean)
    return f"{points(gain.mean)} ± {100 * gain.error:.1f}{', clear' if is_clear(gain) else ''}"


def points(share: float) -> str:
    """A difference in percentage points: "+1.6", "−0.3", "0.0"."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


Scores = Callable[[Bench, str, str], Mapping[int, float]]  # (bench, data set, variant) → score by seed


def compare(
    bench: Bench, ours: str, others: Sequence[str], datasets: Sequence[str], found: Scores = seed_scores
) -> str:
    """One line per rival: the difference of accuracies on every data set, paired by seed."""
    lines = []
    for other in others:
        gains = [
            f"{bench.dataset(data).title} {in_words(difference(found(bench, data, ours), found(bench, data, other)))}"
            for data in datasets
        ]
        lines.append(f"{get_variant(other).title}: {'; '.join(gains)}.")
    if not lines:
        return ""
    n = len(bench.options.seeds)
    how = (
        f"over {n} seeds, paired; “clear”: beyond Student's t at 95 %" if n > 1 else "one seed: no telling from chance"
    )
    return "\n\n".join([f"{get_variant(ours).title} minus each of these, in points ({how}):", *lines])
