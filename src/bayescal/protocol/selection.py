"""Model selection reads records and never trains. Three rules, all from one search.

| rule | looks at | checkpoint | reports on |
|---|---|---|---|
| training-domain | validation images of the training environments | best on those | the whole test set |
| test-domain | validation images of the test distribution | last: one query a draw | test images not among them |
| ood | validation images of neither distribution | best on those | the whole test set |
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bayescal.errors import BayescalError
from bayescal.protocol.store import Record


@dataclass(frozen=True)
class Rule:
    """How one draw is chosen among a search's, separately for every fold and seed."""

    name: str
    title: str
    looks_at: str  # a judged set
    checkpoint: str  # of the run, whose scores are reported

    def value(self, record: Record) -> float | None:
        """What the rule compares; None where the run has not what it takes, or did not finish."""
        curve = record["curves"].get(self.looks_at)
        if not curve or record["stopped"] or self.checkpoint not in record["scores"]:
            return None
        if self.checkpoint == "last":
            return curve[-1]
        return curve[max(record["chosen"][self.checkpoint] - 1, 0)]

    def choose(self, records: Sequence[Record]) -> list[Record]:
        """The best draw of every (fold, seed), the first of equals; in order of fold and seed."""
        best: dict[tuple[str, int], tuple[float, Record]] = {}
        for record in sorted(records, key=lambda r: r["trial"]):
            value = self.value(record)
            place = (record["fold"], record["seed"])
            if value is not None and (place not in best or value > best[place][0]):
                best[place] = (value, record)
        return [record for _, (_, record) in sorted(best.items(), key=lambda item: item[0])]

    def score(self, record: Record, metric: str = "accuracy") -> float | None:
        return record["scores"][self.checkpoint][metric]


RULES = {
    rule.name: rule
    for rule in (
        Rule("training-domain", "training-domain validation", "val", "val"),
        Rule("test-domain", "test-domain validation", "test_val", "last"),
        Rule("ood", "OoD validation", "ood_val", "ood_val"),
    )
}


def get_rule(name: str) -> Rule:
    if name not in RULES:
        raise BayescalError(f"there is no selection rule {name!r}; there are {', '.join(RULES)}")
    return RULES[name]


def per_fold(chosen: Sequence[Record], score: Callable[[Record], float | None]) -> dict[str, dict[int, float]]:
    """fold → seed → score of the chosen runs; scores that are not defined are left out."""
    out: dict[str, dict[int, float]] = {}
    for record in chosen:
        value = score(record)
        if value is not None:
            out.setdefault(record["fold"], {})[record["seed"]] = value
    return out


def overall(by_fold: dict[str, dict[int, float]], folds: Collection[str] = ()) -> dict[int, float]:
    """Mean over folds for every seed that finished in all of them: seeds are the sample, folds are not.

    `folds` are those that there should be: where one has no score, the mean of the others would be another quantity.
    """
    if not by_fold or set(folds) - set(by_fold):
        return {}
    seeds = set.intersection(*(set(scores) for scores in by_fold.values()))
    return {seed: float(np.mean([scores[seed] for scores in by_fold.values()])) for seed in sorted(seeds)}
