"""Base-to-new: learn from base classes, predict classes whose names were never seen in training.

The new classes are told apart among themselves, in the held-out environment (OoD) and in the training environments
(I.I.D.). Four context vectors that start from "a photo of a", at the end, shared by the classes, as in the paper.
Acc*: the threshold for "unsure" comes from validation images of the base classes; nothing new is looked at.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bayescal.errors import BayescalError, DataError
from bayescal.experiments import published
from bayescal.experiments.bench import CORE, Bench, Search
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
READS_NAMES = (*NAMES, "clip-adapter", "cal-w2v", "bayes-cal-w2v")  # methods that can be given another name
CHECKPOINT = "val"  # only base classes of the training environments may choose
PLACES = {"ood": "OoD: held-out environment", "iid": "I.I.D.: training environments"}


def datasets(bench: Bench) -> list[str]:
    """Data sets that say which classes are base and which are new."""
    return [name for name in bench.options.datasets if bench.dataset(name).new_classes]


def names(bench: Bench) -> list[str]:
    if bench.options.methods is None:
        return list(CORE if bench.options.quick else NAMES)
    known = [name for name in bench.options.methods if get_entry(name).method in READS_NAMES]
    if lost := [name for name in bench.options.methods if name not in known]:
        bench.notes.append(f"left out, since they know no names but those of training: {', '.join(lost)}")
    return known


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
    out: list[dict[str, Any]] = [{"new": {}} for _ in results]
    fold = next((fold for fold in new.folds if fold.name == first.fold.name), None)
    if fold is None:  # the new classes have no image there
        return out
    for where, mask in {"ood": fold.test, "iid": fold.pool}.items():
        rows = new.feature_rows(np.flatnonzero(mask))
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
    if not names(bench):
        raise BayescalError(f"base-to-new needs methods that can read a new name: {', '.join(READS_NAMES)}")
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
    if "bayes-cal" in names(bench):
        rivals = [name for name in names(bench) if name != "bayes-cal"]
        text.append("In the held-out environment: " + compare(bench, "bayes-cal", rivals, datasets(bench), ood_scores))
    return make_section(
        bench,
        "base-to-new",
        "New class names",
        "\n\n".join(text),
        tables,
        limits="Few new classes (two on PACS) make an easy choice whose difficulty depends on which two they are.",
    )


def ood_scores(bench: Bench, data: str, name: str) -> dict[int, float]:
    return new_scores(bench, data, name, "ood", "accuracy")


def new_scores(bench: Bench, data: str, name: str, where: str, metric: str) -> dict[int, float]:
    """A metric on the new classes by seed, mean over held-out environments."""
    # Training-domain validation on base classes, whatever the data set's rule: nothing else exists for new names.
    records = bench.records(search_of(bench, data, name))
    chosen = rule_of(bench, data, "training-domain").choose(records)

    def found(record: Record) -> float | None:
        return record["new"].get(where, {}).get(metric)

    return overall(per_fold(chosen, found), {record["fold"] for record in records})


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
            f"{where}/{metric}": value(new_scores(bench, data, name, where, metric))
            for where in PLACES
            for metric, _ in metrics
        }
        for i, number in enumerate(published.BASE_TO_NEW.get(data, {}).get(name, ())):
            cells[f"paper/{i}"] = Value(number / 100)
        rows.append(Row(get_entry(name).title, cells))
    title = f"{bench.dataset(data).title}: classes that were not in training"
    note = f"Among the new names only; {SPREAD}; held-out environments averaged. Acc*: threshold from base classes."
    return Table(f"base-to-new/{data}", title, (*columns, *(published_ if papers else ())), tuple(rows), note)


EXPERIMENT = Experiment("base-to-new", "classes whose names were not in training", searches, section)
