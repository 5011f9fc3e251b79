"""Base-to-new: learn from base classes, predict classes whose names were never seen in training.

The new classes are told apart among themselves, in the held-out environment (OoD) and in the training environments
(I.I.D.). Four context vectors that start from "a photo of a", at the end, shared by the classes, as in the paper.
Acc*: the threshold for "unsure" comes from validation images of the base classes; nothing new is looked at.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bayescal.errors import DataError
from bayescal.experiments import published
from bayescal.experiments.bench import Bench, Search
from bayescal.experiments.experiment import SPREAD, Experiment, compare, make_section, rule_of, value
from bayescal.experiments.findings import Column, Row, Section, Table, Value
from bayescal.methods import get_method
from bayescal.protocol.arena import Arena
from bayescal.protocol.entries import Entry, get_entry
from bayescal.protocol.runner import DRAWS, Planned, unsure_below
from bayescal.protocol.scoring import predict_rows, score
from bayescal.protocol.selection import overall, per_fold
from bayescal.protocol.store import Record
from bayescal.stacks import RunResult

NAMES = ("clip", "coop", "cocoop", "dplclip", "cal", "bayes-cal")
SETTING = {"n_context": 4, "context_init": "a photo of a", "position": "end", "class_specific": False}
CHECKPOINT = "val"  # only base classes of the training environments may choose
PLACES = {"ood": "OoD: held-out environment", "iid": "I.I.D.: training environments"}


def datasets(bench: Bench) -> list[str]:
    """Data sets that say which classes are base and which are new."""
    return [name for name in bench.options.datasets if bench.dataset(name).new_classes]


def names(bench: Bench) -> list[str]:
    return list(bench.options.methods or (("clip", "coop", "cal", "bayes-cal") if bench.options.quick else NAMES))


def search_of(bench: Bench, data: str, name: str) -> Search:
    entry, arena = get_entry(name), bench.sources.arena(data)
    space = get_method(entry.method).space
    fixed = {**entry.fixed, **{option: v for option, v in SETTING.items() if option in space}}
    entry = Entry(entry.key, entry.method, entry.title, fixed, entry.space, entry.searched)
    whole = arena.with_classes(arena.dataset.new_classes)
    return Search(data, entry, "base-to-new", tuple(arena.dataset.base_classes), extra=partial(score_new, whole))


def score_new(new: Arena, results: Sequence[RunResult], first: Planned) -> list[dict[str, Any]]:
    """Scores on the new classes, for runs that share fold, seed and settings: `new` has those classes alone."""
    base, problem = first.arena, new.problem
    threshold = unsure_below(base, results, CHECKPOINT, base.sets(first.fold, first.seed).judged["val"])
    fold = next(fold for fold in new.folds if fold.name == first.fold.name)
    place = {"ood": fold.test, "iid": np.isin(new.manifest.environment_ids, fold.train_environments) & ~fold.test}
    out: list[dict[str, Any]] = [{"new": {}} for _ in results]
    for where, mask in place.items():
        rows = new.feature_rows(np.flatnonzero(mask & (new.rows >= 0)))
        groups = problem.environments[rows]
        probs = predict_rows(
            base.problem, results, CHECKPOINT, problem.features[rows], DRAWS, groups, new.manifest.class_words
        ).probs
        found = score(probs, problem.labels[rows], groups, threshold, new.manifest.classes, new.manifest.environments)
        for record, own in zip(out, found, strict=True):
            record["new"][where] = own
    return out


def searches(bench: Bench) -> list[Search]:
    if not datasets(bench):
        raise DataError(
            "base-to-new needs a data set that names base and new classes (pacs, nico-sub); given: "
            f"{', '.join(bench.options.datasets)}"
        )
    return [search_of(bench, data, name) for data in datasets(bench) for name in names(bench)]


def section(bench: Bench) -> Section:
    tables = [_table(bench, data) for data in datasets(bench)]
    text = [
        "Prompts learned on the base classes are given names they have never met. Zero-shot has nothing to forget; a "
        "learned prompt may have."
    ]
    for data in datasets(bench):
        arena = bench.sources.arena(data)
        title, base, new = arena.dataset.title, arena.dataset.base_classes, arena.dataset.new_classes
        text.append(f"{title}: base {', '.join(base)}; new {', '.join(new)}.")
        for other in ("clip", "coop", "cal"):
            if {other, "bayes-cal"} <= set(names(bench)):
                ours, theirs = (_values(bench, data, n, "ood", "accuracy") for n in ("bayes-cal", other))
                text.append(f"{title}, OoD: {compare(ours, theirs, 'Bayes-CAL', get_entry(other).title)}")
    return make_section(
        bench,
        "base-to-new",
        "New class names",
        "\n\n".join(text),
        tables,
        limits="Few new classes (two on PACS) make an easy choice whose difficulty depends on which two they are.",
    )


def _values(bench: Bench, data: str, name: str, where: str, metric: str) -> Value:
    # Training-domain validation on base classes, whatever the data set's rule: nothing else exists for new names.
    chosen = rule_of(bench, data, "training-domain").choose(bench.records(search_of(bench, data, name)))

    def found(record: Record) -> float | None:
        return record["new"][where][metric]

    return value(overall(per_fold(chosen, found)))


def _table(bench: Bench, data: str) -> Table:
    metrics = (("accuracy", "Acc"), ("selective_accuracy", "Acc*"), ("coverage", "coverage"), ("ece", "ECE"))
    columns = [
        Column(f"{where}/{metric}", title, "low" if metric == "ece" else "high", group=PLACES[where])
        for where in PLACES
        for metric, title in metrics
    ]
    papers = published.is_papers(bench.options.backbone) and data in published.BASE_TO_NEW
    published_ = [
        Column(f"paper/{i}", title, "high", published=True, group="paper, RN50")
        for i, title in enumerate(("OoD Acc", "OoD Acc*", "I.I.D. Acc", "I.I.D. Acc*"))
    ]
    rows = []
    for name in names(bench):
        cells = {
            f"{where}/{metric}": _values(bench, data, name, where, metric) for where in PLACES for metric, _ in metrics
        }
        for i, number in enumerate(published.BASE_TO_NEW.get(data, {}).get(name, ())):
            cells[f"paper/{i}"] = Value(number / 100)
        rows.append(Row(get_entry(name).title, cells))
    title = f"{bench.dataset(data).title}: classes that were not in training"
    note = f"Among the new names only; {SPREAD}; held-out environments averaged. Acc*: threshold from base classes."
    return Table(f"base-to-new/{data}", title, (*columns, *(published_ if papers else ())), tuple(rows), note)


EXPERIMENT = Experiment("base-to-new", "classes whose names were not in training", searches, section)
