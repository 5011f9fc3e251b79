"""Figures that several experiments show, from records."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescal.experiments.experiment import line, seed_curves
from bayescal.experiments.findings import Figure
from bayescal.protocol.selection import Rule
from bayescal.protocol.store import Record

LOG_PARAMETERS = ("lambda_env", "lambda_irm", "lambda_orth", "learning_rate")


def reliability_figure(key: str, title: str, chosen: Mapping[str, Sequence[Record]], rule: Rule) -> Figure:
    """Accuracy against confidence in bins, the chosen runs of each method pooled."""
    series = [{"name": name, **pooled_bins(records, rule)} for name, records in chosen.items() if records]
    note = "Images of all folds and seeds pooled. Below the diagonal: more confident than right."
    return Figure(key, title, "reliability", {"panels": [{"title": "", "series": series}]}, note)


def pooled_bins(records: Sequence[Record], rule: Rule) -> dict[str, Any]:
    """Bins of several runs as one: counts add up, confidence and accuracy are means weighted by them."""
    bins = [record["scores"][rule.checkpoint]["reliability"] for record in records]
    table = lambda name: np.array([[0.0 if v is None else v for v in b[name]] for b in bins])  # noqa: E731
    count = table("count")
    total = count.sum(0)
    mean = lambda name: [  # noqa: E731
        float(v) if n else None for v, n in zip((table(name) * count).sum(0) / np.maximum(total, 1), total, strict=True)
    ]
    ece = float(np.mean([record["scores"][rule.checkpoint]["ece"] for record in records]))
    return {"confidence": mean("confidence"), "accuracy": mean("accuracy"), "count": total.tolist(), "ece": ece}


def risk_coverage_figure(key: str, title: str, chosen: Mapping[str, Sequence[Record]], rule: Rule) -> Figure:
    """Error rate among the images a method is surest of, mean over folds and seeds."""
    grid = np.linspace(0.02, 1, 50)

    def curve(record: Record) -> list[float]:
        found = record["scores"][rule.checkpoint]["risk_coverage"]
        return np.interp(grid, found["coverage"], found["risk"]).tolist()

    series = []
    for name, records in chosen.items():
        if records:
            series.append(line(name, seed_curves(records, curve), grid.tolist()))
    data = {
        "x": "coverage: share of images answered", "y": "error rate among them", "percent": True, "log_y": False,
        "panels": [{"title": "", "chance": None, "series": series}],
    }  # fmt: skip
    return Figure(key, title, "lines", data, "Lower is better. At coverage 1 it is the ordinary error rate.")


def draws_figure(key: str, title: str, records: Mapping[str, Sequence[Record]], rule: Rule) -> Figure:
    """Test accuracy of every draw against each searched number: which hyper-parameters matter."""
    searched = sorted({n for runs in records.values() for n in searched_numbers(runs)})
    panels = []
    for parameter in searched:
        points = []
        for name, runs in records.items():
            if parameter not in searched_numbers(runs):
                continue
            draws: dict[int, list[Record]] = {}
            for record in runs:
                if record["scores"].get(rule.checkpoint):
                    draws.setdefault(record["trial"], []).append(record)
            for trial, same in sorted(draws.items()):
                mean = float(np.mean([rule.score(record) for record in same]))
                looked = [rule.value(record) for record in same]
                seen = np.mean([v for v in looked if v is not None]) if any(v is not None for v in looked) else np.nan
                text = f"draw {trial}, validation {100 * seen:.1f} %"
                points.append({"name": name, "x": same[0]["config"][parameter], "y": mean, "text": text})
        panels.append({"title": parameter, "log_x": parameter in LOG_PARAMETERS, "points": points})
    note = (
        "A point is one draw: mean test accuracy over seeds and folds. Shown after the fact; nothing was chosen by it."
    )
    return Figure(key, title, "scatter", {"y": "test accuracy", "percent": True, "panels": panels}, note)


def searched_numbers(records: Sequence[Record]) -> list[str]:
    """Hyper-parameters that are numbers and differ between the draws."""
    if not records:
        return []
    first = records[0]["config"]
    numbers = [n for n, v in first.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    return [n for n in numbers if len({record["config"].get(n) for record in records}) > 1]
