"""Figures that several experiments show, from records."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bayescal.benchmark.experiments.experiment import line, seed_curves
from bayescal.benchmark.records import Record
from bayescal.benchmark.results import Figure
from bayescal.evaluation.selection import Rule


def reliability_figure(key: str, title: str, chosen: Mapping[str, Sequence[Record]], rule: Rule) -> Figure:
    """Accuracy against confidence in bins, the chosen runs of each method pooled."""
    series = [{"name": name, **pooled_bins(records, rule)} for name, records in chosen.items() if records]
    note = "Images of all folds and seeds pooled. Below the diagonal: more confident than right."
    return Figure(key, title, "reliability", {"panels": [{"title": "", "series": series}]}, note)


def pooled_bins(records: Sequence[Record], rule: Rule) -> dict[str, Any]:
    """Bins of several runs as one: counts add up, confidence and accuracy are means weighted by them."""
    scores = [record.scores[rule.checkpoint] for record in records]
    count, confidence, accuracy = (
        np.array([[0.0 if v is None else v for v in getattr(own.reliability, name)] for own in scores])
        for name in ("count", "confidence", "accuracy")
    )  # (runs, bins) each
    total = count.sum(0)

    def mean(values: np.ndarray) -> list[float | None]:
        weighted = (values * count).sum(0) / np.maximum(total, 1)
        return [float(v) if n else None for v, n in zip(weighted, total, strict=True)]

    ece = float(np.mean([own.ece for own in scores if own.ece is not None]))
    return {"confidence": mean(confidence), "accuracy": mean(accuracy), "count": total.tolist(), "ece": ece}


def risk_coverage_figure(key: str, title: str, chosen: Mapping[str, Sequence[Record]], rule: Rule) -> Figure:
    """Error rate among the images a method is surest of, mean over folds and seeds."""
    grid = np.linspace(0.02, 1, 50)

    def curve(record: Record) -> list[float]:
        found = record.scores[rule.checkpoint].risk_coverage
        return np.interp(grid, np.array(found.coverage, float), np.array(found.risk, float)).tolist()

    series = []
    for name, records in chosen.items():
        if records:
            series.append(line(name, seed_curves(records, curve), grid.tolist()))
    data = {
        "x": "coverage: share of images answered", "y": "error rate among them", "percent": True, "log_y": False,
        "panels": [{"title": "", "chance": None, "series": series}],
    }  # fmt: skip
    return Figure(key, title, "lines", data, "Lower is better. At coverage 1 it is the ordinary error rate.")


def trials_figure(
    key: str, title: str, records: Mapping[str, Sequence[Record]], rule: Rule, logarithmic: Collection[str] = ()
) -> Figure:
    """Test accuracy of every trial against each searched number: which hyper-parameters matter.

    `logarithmic`: those that were drawn on a logarithmic scale, and are shown on one.
    """
    searched = sorted({name for runs in records.values() for name in searched_numbers(runs)})
    panels = [
        {
            "title": parameter,
            "log_x": parameter in logarithmic,
            "points": [
                point
                for name, runs in records.items()
                if parameter in searched_numbers(runs)
                for point in _trial_points(name, parameter, runs, rule)
            ],
        }
        for parameter in searched
    ]
    note = (
        "A point is one trial: mean test accuracy over seeds and folds. Shown after the fact; nothing was chosen by it."
    )
    return Figure(key, title, "scatter", {"y": "test accuracy", "percent": True, "panels": panels}, note)


def _trial_points(name: str, parameter: str, runs: Sequence[Record], rule: Rule) -> list[dict[str, Any]]:
    """A point of each trial: the parameter's value, and the mean accuracy over seeds and folds."""
    trials: dict[int, list[Record]] = {}
    for record in runs:
        if record.scores.get(rule.checkpoint):
            trials.setdefault(record.trial, []).append(record)
    points = []
    for trial, same in sorted(trials.items()):
        found = [value for value in map(rule.score, same) if value is not None]
        if not found:  # no test image is left to report on
            continue
        looked = [value for value in map(rule.value, same) if value is not None]
        seen = float(np.mean(looked)) if looked else np.nan
        text = f"trial {trial}, validation {100 * seen:.1f} %"
        points.append({"name": name, "x": same[0].config[parameter], "y": float(np.mean(found)), "text": text})
    return points


def searched_numbers(records: Sequence[Record]) -> list[str]:
    """Hyper-parameters that are numbers and differ between the trials."""
    if not records:
        return []
    first = records[0].config
    numbers = [n for n, v in first.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    return [n for n in numbers if len({record.config.get(n) for record in records}) > 1]
