"""What predictions are worth: every number that the package reports, each under one name.

`score` measures stacks of runs (records of experiments keep its answers), `evaluate` one classifier, with its confusion
matrix and each environment and class by itself. None stands for what is not defined: the accuracy of no image, the
AUROC of a run without a single error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayescal.evaluation import metrics
from bayescal.util.jsonable import finite

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BINS = 15
WHOLE_MATRIX = 500  # classes up to which the confusion matrix is kept zeros and all
CURVE_POINTS = 50  # of the risk–coverage curve that is kept

Curve = list[float | None]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram, one number per bin; None where a bin is empty."""

    count: Curve = field(default_factory=list)
    confidence: Curve = field(default_factory=list)
    accuracy: Curve = field(default_factory=list)


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the most confident share of the images, at some points of the curve."""

    coverage: Curve = field(default_factory=list)
    risk: Curve = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """Every metric of one run on one set of images (docs/metrics.md)."""

    eval_set: str = ""
    images: int = 0
    accuracy: float | None = None
    worst_environment: float | None = None  # accuracy in the environment where it is lowest
    ece: float | None = None
    brier: float | None = None
    nll: float | None = None
    auroc: float | None = None
    fpr95: float | None = None
    aurc: float | None = None
    selective_accuracy: float | None = None  # Acc*: of the answers that are not "unsure"
    selective_accuracy_code: float | None = None  # Acc*(code): as the published code counts it
    coverage: float | None = None
    threshold: float | None = None
    per_class: dict[str, float] = field(default_factory=dict)
    per_environment: dict[str, float] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    risk_coverage: RiskCoverage = field(default_factory=RiskCoverage)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Scores":
        """What `dataclasses.asdict` made of scores."""
        bins, curve = Reliability(**content.get("reliability", {})), RiskCoverage(**content.get("risk_coverage", {}))
        return cls(**{**content, "reliability": bins, "risk_coverage": curve})


@dataclass(frozen=True)
class EnvironmentScores:
    """How a classifier does in one environment; `seen`: it learned from images of it."""

    name: str
    seen: bool
    images: int
    accuracy: float | None
    selective_accuracy: float | None
    coverage: float | None


@dataclass(frozen=True)
class ClassScores:
    """How a classifier does on the images of one class."""

    name: str
    images: int
    accuracy: float | None


@dataclass(frozen=True)
class Evaluation:
    """How good one classifier is on labelled images."""

    scores: Scores
    environments: tuple[EnvironmentScores, ...]  # those with images
    classes: tuple[ClassScores, ...]  # those with images
    class_names: tuple[str, ...]
    confusions: tuple[tuple[int, int, int], ...]  # (i, j, n): n > 0 images of class i were called j; also j = i

    @property
    def confusion_matrix(self) -> tuple[tuple[int, ...], ...]:
        """(C, C): images of class i (row) that were called class j (column). Made when asked for: C² numbers."""
        rows = [[0] * len(self.class_names) for _ in self.class_names]
        for i, j, count in self.confusions:
            rows[i][j] = count
        return tuple(map(tuple, rows))

    def sparse_confusion_matrix(self) -> "csr_array":
        """The same for thousands of classes: memory grows with the images, not with the square of the classes."""
        from scipy.sparse import csr_array

        true, said, counts = zip(*self.confusions, strict=True)
        return csr_array((counts, (true, said)), shape=(len(self.class_names),) * 2)

    @property
    def worst_environment(self) -> EnvironmentScores:
        """Where the accuracy is lowest; the first of equals."""
        return min(self.environments, key=lambda environment: environment.accuracy or 0.0)

    def to_json(self) -> dict[str, Any]:
        """One flat record: the metrics by name, then environments, classes and the confusion matrix."""
        numbers = asdict(self.scores)
        for name in ("eval_set", "per_class", "per_environment"):  # the tables below say more
            del numbers[name]
        return {
            **numbers,
            "worst_environment_name": self.worst_environment.name,
            "environments": [asdict(environment) for environment in self.environments],
            "classes": [asdict(each) for each in self.classes],
            "confusion_matrix": {"classes": list(self.class_names), **self._counts()},
        }

    def brief(self) -> dict[str, Any]:
        """What a model keeps of how it was checked: without what grows with the square of the classes."""
        record = self.to_json()
        return {name: value for name, value in record.items() if name not in ("confusion_matrix", "risk_coverage")}

    def _counts(self) -> dict[str, Any]:
        """The matrix; of very many classes its entries that are not zero: [true, said, images]."""
        if len(self.class_names) <= WHOLE_MATRIX:
            return {"counts": [list(row) for row in self.confusion_matrix]}
        return {"entries": [list(entry) for entry in self.confusions]}


def score(
    probs: Tensor,
    labels: Tensor,
    groups: Tensor,
    threshold: Tensor,
    classes: Sequence[str],
    environments: Sequence[str],
) -> list[Scores]:
    """Every metric of R runs on N images: probs (R, N, C), labels and groups (N,), threshold (R,).

    `groups` numbers the environment of each image.
    """
    selective = metrics.selective_accuracy(probs, labels, threshold)
    bins = metrics.reliability_bins(probs, labels, BINS)
    curve = metrics.risk_coverage_curve(probs, labels)
    points = torch.linspace(0, len(labels) - 1, min(CURVE_POINTS, len(labels))).round().long().unique()
    points = points.to(curve.risk.device)
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
    own: list[dict[str, Any]] = [
        {name: finite(values[r]) for name, values in numbers.items()} for r in range(len(probs))
    ]
    per_class = metrics.accuracy_per_class(probs, labels)
    per_environment = metrics.accuracy_per_group(probs, labels, groups, len(environments))
    return [
        Scores(
            images=len(labels),
            **own[r],
            per_class=_named(classes, per_class[r]),
            per_environment=_named(environments, per_environment[r]),
            reliability=Reliability(*(_list(values[r]) for values in bins)),
            risk_coverage=RiskCoverage(_list(curve.coverage[points]), _list(curve.risk[r, points])),
        )
        for r in range(len(probs))
    ]


def evaluate(
    probs: Tensor,
    labels: Tensor,
    groups: Tensor,
    *,
    threshold: float,
    classes: Sequence[str],
    environments: Sequence[str],
    seen: Collection[str] = (),
) -> Evaluation:
    """How good one classifier's answers are: probs (N, C), labels and groups (N,) on the CPU.

    `groups` numbers the environment of each image among `environments`; `seen` are those that it learned from.
    """
    (scores,) = score(
        probs[None], labels, groups, torch.tensor([threshold], dtype=torch.float64), classes, environments
    )
    counts = labels.bincount(minlength=len(classes)).tolist()
    return Evaluation(
        scores=scores,
        environments=tuple(
            _environment(environments[int(number)], probs, labels, groups == number, threshold, seen)
            for number in groups.unique().tolist()
        ),
        classes=tuple(
            ClassScores(name, n, scores.per_class.get(name)) for name, n in zip(classes, counts, strict=True) if n
        ),
        class_names=tuple(classes),
        confusions=_confusions(probs.argmax(-1), labels, len(classes)),
    )


def _confusions(said: Tensor, labels: Tensor, n_classes: int) -> tuple[tuple[int, int, int], ...]:
    """Of answers and labels (N,): class, answer and how many, where there are any."""
    cells, counts = (labels * n_classes + said).unique(return_counts=True)
    return tuple((*divmod(cell, n_classes), n) for cell, n in zip(cells.tolist(), counts.tolist(), strict=True))


def _environment(
    name: str, probs: Tensor, labels: Tensor, mine: Tensor, threshold: float, seen: Collection[str]
) -> EnvironmentScores:
    selective = metrics.selective_accuracy(probs[mine], labels[mine], threshold)
    return EnvironmentScores(
        name=name,
        seen=name in seen,
        images=int(mine.sum()),
        accuracy=finite(metrics.accuracy(probs[mine], labels[mine])),
        selective_accuracy=finite(selective.accuracy),
        coverage=finite(selective.coverage),
    )


def _list(values: Tensor) -> Curve:
    return [None if (number := finite(value)) is None else round(number, 6) for value in values.tolist()]


def _named(names: Sequence[str], values: Tensor) -> dict[str, float]:
    """By name, without those that have no image here."""
    return {name: v for name, value in zip(names, values.tolist(), strict=True) if (v := finite(value)) is not None}
