"""What a finished run is worth: every metric at every checkpoint that a selection rule may report, on stacks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescal import metrics
from bayescal.methods.base import Predictive, Runs, predict
from bayescal.stacks import Problem, RunResult

KEEP = 0.95  # share of the correct validation answers that "unsure" may not touch
BINS = 15
CURVE_POINTS = 50  # of the risk–coverage curve that a record keeps
MEMORY = 1 << 25  # probabilities (rows × draws × images × classes) that are held at once


def predict_rows(
    problem: Problem,
    results: Sequence[RunResult],
    checkpoint: str,
    features: Tensor,
    draws: int,
    groups: Tensor | None = None,
    classes: Sequence[str] | None = None,
) -> Predictive:
    """Predictions (R, N, C) of runs with the same settings and environments on the same images (N, D).

    A bounded number of rows at a time. `groups` (N,) is the place of each image, for methods that read it off a batch.
    With other `classes`: predictions among those names.
    """
    n_classes = len(classes or problem.class_words)
    if not len(features):
        return Predictive(features.new_zeros(len(results), 0, n_classes), features.new_zeros(len(results), 0))
    held = max(1, draws) * min(len(features), 4096) * n_classes
    size = max(1, MEMORY // held)
    parts = []
    for at in range(0, len(results), size):
        rows = results[at : at + size]
        single = rows[0].bind(problem, classes)
        runs = Runs.stack(single.space, [r.config for r in rows], [r.seed for r in rows], features.device)
        chosen = [r.params_at(checkpoint) for r in rows]
        params = {name: torch.cat([p[name] for p in chosen]) for name in chosen[0]}
        parts.append(predict(type(single)(single.task, runs), params, features, draws, groups))
    return Predictive(torch.cat([p.probs for p in parts]), torch.cat([p.expected_entropy for p in parts]))


def score(
    probs: Tensor,
    labels: Tensor,
    groups: Tensor,
    threshold: Tensor,
    classes: Sequence[str],
    environments: Sequence[str],
) -> list[dict[str, Any]]:
    """Every metric of R runs on N images, one dict per run: probs (R, N, C), labels and groups (N,), threshold (R,)."""
    selective = metrics.selective_accuracy(probs, labels, threshold)
    bins = metrics.reliability_bins(probs, labels, BINS)
    curve = metrics.risk_coverage_curve(probs, labels)
    points = torch.linspace(0, len(labels) - 1, min(CURVE_POINTS, len(labels))).round().long().unique()
    numbers = {
        "accuracy": metrics.accuracy(probs, labels),
        "worst_environment": metrics.worst_group_accuracy(probs, labels, groups, len(environments)),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "nll": metrics.nll(probs, labels),
        "auroc": metrics.auroc_errors(probs, labels),
        "fpr95": metrics.fpr_at_95_tpr(probs, labels),
        "aurc": metrics.aurc(probs, labels),
        "selective_accuracy": selective.accuracy,
        "selective_accuracy_code": selective.accuracy_code,
        "coverage": selective.coverage,
        "threshold": threshold,
    }
    per_class = metrics.accuracy_per_class(probs, labels)
    per_environment = metrics.accuracy_per_group(probs, labels, groups, len(environments))
    return [
        {
            **{name: finite(values[r]) for name, values in numbers.items()},
            "images": len(labels),
            "per_class": _named(classes, per_class[r]),
            "per_environment": _named(environments, per_environment[r]),
            "reliability": {name: _list(getattr(bins, name)[r]) for name in bins._fields},
            "risk_coverage": {
                "coverage": _list(curve.coverage[points.to(curve.coverage.device)]),
                "risk": _list(curve.risk[r, points.to(curve.risk.device)]),
            },
        }
        for r in range(len(probs))
    ]


def finite(value: Any) -> float | None:
    """A number that JSON has; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def _list(values: Tensor) -> list[float | None]:
    return [None if (number := finite(value)) is None else round(number, 6) for value in values.tolist()]


def _named(names: Sequence[str], values: Tensor) -> Mapping[str, float]:
    """By name, without those that have no image here."""
    return {name: v for name, value in zip(names, values.tolist(), strict=True) if (v := finite(value)) is not None}
