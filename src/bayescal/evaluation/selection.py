"""Model selection reads records and never trains. The rules, all from one search and its inner runs:

| rule | looks at | checkpoint | reports on |
|---|---|---|---|
| training-domain | validation images of the training environments | best on those | the whole test set |
| test-domain | validation images of the test distribution | last: one query a trial | test images not among them |
| ood | validation images of neither distribution | best on those | the whole test set |
| leave-one-environment-out | training environments left out of inner runs | best on "val" | the whole test set |
| leave-one-environment-out-likelihood | the same, by likelihood | best on "val" | the whole test set |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from bayescal.data.datasets.base import WITHOUT
from bayescal.errors import BayescalError


class FinishedRun(Protocol):
    """What a rule reads of a run's record (`benchmark.records.Record` has it)."""

    @property
    def fold(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def trial(self) -> int: ...
    @property
    def stopped(self) -> str | None: ...
    @property
    def curves(self) -> Mapping[str, Sequence[float | None]]: ...
    @property
    def chosen(self) -> Mapping[str, int]: ...
    @property
    def scores(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=FinishedRun)


@dataclass(frozen=True)
class Rule:
    """How one trial is chosen among a search's, separately for every fold and seed."""

    name: str
    title: str
    looks_at: str  # an evaluation set
    checkpoint: str  # of the run, whose scores are reported
    inner_metric: str = ""  # of inner runs, which it compares; empty: it looks at the run itself

    def value(self, record: FinishedRun, inner: Sequence[FinishedRun] = ()) -> float | None:
        """What the rule compares; None where the run has no such validation images, or did not finish."""
        if self.inner_metric:
            return self._inner_value(record, inner)
        curve = record.curves.get(self.looks_at)
        if not curve or record.stopped or self.checkpoint not in record.scores:
            return None
        if self.checkpoint == "last":
            return curve[-1]
        return curve[max(record.chosen[self.checkpoint] - 1, 0)]

    def _inner_value(self, record: FinishedRun, inner: Sequence[FinishedRun]) -> float | None:
        """Mean over the environments left out; larger is better. One that did not finish rules the trial out."""
        if record.stopped or self.checkpoint not in record.scores or not inner:
            return None
        scores = [None if r.stopped else getattr(r.scores[self.checkpoint], self.inner_metric) for r in inner]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        return float(np.mean(known)) * (-1 if self.inner_metric == "nll" else 1)

    def choose(self, records: Sequence[R], inner: Sequence[R] = ()) -> list[R]:
        """The best trial of every (fold, seed), the first of equals; in order of fold and seed.

        `inner`: the records of the inner runs, where the rule compares them.
        """
        best: dict[tuple[str, int], tuple[float, R]] = {}
        own: dict[tuple[str, int, int], list[R]] = {}
        for record in inner:
            own.setdefault((record.fold.rpartition(WITHOUT)[0], record.seed, record.trial), []).append(record)
        for record in sorted(records, key=lambda r: r.trial):
            value = self.value(record, own.get((record.fold, record.seed, record.trial), ()))
            cell = (record.fold, record.seed)
            if value is not None and (cell not in best or value > best[cell][0]):
                best[cell] = (value, record)
        return [record for _, (_, record) in sorted(best.items(), key=lambda item: item[0])]

    def score(self, record: FinishedRun, metric: str = "accuracy") -> float | None:
        return getattr(record.scores[self.checkpoint], metric)


RULES = {
    rule.name: rule
    for rule in (
        Rule("training-domain", "training-domain validation", "val", "val"),
        Rule("test-domain", "test-domain validation", "test_val", "last"),
        Rule("ood", "OoD validation", "ood_val", "ood_val"),
        Rule("leave-one-environment-out", "leave one environment out, accuracy", "left_out", "val", "accuracy"),
        Rule("leave-one-environment-out-likelihood", "leave one environment out, likelihood", "left_out", "val", "nll"),
    )
}


def get_rule(name: str) -> Rule:
    if name not in RULES:
        raise BayescalError(f"there is no selection rule {name!r}; there are {', '.join(RULES)}")
    return RULES[name]


def per_fold(chosen: Sequence[R], score: Callable[[R], float | None]) -> dict[str, dict[int, float]]:
    """fold → seed → score of the chosen runs; scores that are not defined are left out."""
    out: dict[str, dict[int, float]] = {}
    for record in chosen:
        value = score(record)
        if value is not None:
            out.setdefault(record.fold, {})[record.seed] = value
    return out


def overall(by_fold: dict[str, dict[int, float]], folds: Collection[str] = ()) -> dict[int, float]:
    """Mean over folds for every seed that finished in all of them: seeds are the sample, folds are not.

    `folds` are those that there should be: where one has no score, the mean of the others would be another quantity.
    """
    if not by_fold or set(folds) - set(by_fold):
        return {}
    seeds = set.intersection(*(set(scores) for scores in by_fold.values()))
    return {seed: float(np.mean([scores[seed] for scores in by_fold.values()])) for seed in sorted(seeds)}
