"""Base-to-new: learn from base classes, predict classes whose names were never seen in training.

In the held-out environment (OoD) and in the training environments (I.I.D.), in two label spaces: base images among the
base names and new images among the new names, as most papers do, and both among all names, as the released code does.
Four context vectors that start from "a photo of a", at the end, shared by the classes, as in the paper.

Acc* needs a threshold from predictions that look like those it is applied to: the more names, the lower the confidence.
All come from validation images of the base classes; no image of a new class is looked at. Among all names: these images
predicted among all names. Among K new names: these images predicted among K base names, every choice of K in turn.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.benchmark.bench import CORE, Bench
from bayescal.benchmark.experiments import published
from bayescal.benchmark.experiments.experiment import (
    Experiment,
    compare,
    finished_seeds,
    make_section,
    rule_of,
    value,
)
from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.records import Record, Scores
from bayescal.benchmark.remote import PackedDataset
from bayescal.benchmark.results import Better, Column, Row, Section, Table, Value
from bayescal.benchmark.runner import POSTERIOR_SAMPLES, PlannedRun
from bayescal.benchmark.searches import Search
from bayescal.benchmark.splits import EvalSplits
from bayescal.benchmark.variants import MethodVariant, get_variant
from bayescal.data.datasets.base import Fold
from bayescal.data.splits import Hashes
from bayescal.errors import BayescalError, DataError
from bayescal.evaluation.calibration import unsure_threshold
from bayescal.evaluation.scoring import score
from bayescal.evaluation.selection import overall, per_fold
from bayescal.methods import get_method, method_names
from bayescal.training.runs import StackResult

NAMES = ("clip", "coop", "cocoop", "dplclip", "cal", "bayes-cal")
SETTING = {"n_context": 4, "context_init": "a photo of a", "position": "end", "class_specific": False}
CHECKPOINT = "val"  # only base classes of the training environments may choose
SETTINGS = {"ood": "OoD: held-out environment", "iid": "I.I.D.: training environments"}
SPACES = {"own": "each among its own names", "all": "among base and new names"}  # which names an answer may be
MOST_CHOICES = 50  # of K base names, for the threshold; where there are more, each name with the K − 1 that follow it


def datasets(bench: Bench) -> list[str]:
    """Data sets that say which classes are base and which are new."""
    return [name for name in bench.options.datasets if bench.dataset(name).new_classes]


def names(bench: Bench) -> list[str]:
    if bench.options.methods is None:
        return list(CORE if bench.options.quick else NAMES)
    known = [name for name in bench.options.methods if get_method(get_variant(name).method).reads_new_names]
    if lost := [name for name in bench.options.methods if name not in known]:
        bench.notes.append(f"left out, since they know no names but those of training: {', '.join(lost)}")
    return known


def search_of(bench: Bench, data: str, name: str) -> Search:
    variant, prepared = get_variant(name), bench.sources.prepared(data)
    space = get_method(variant.method).space
    fixed = {**variant.fixed, **{option: v for option, v in SETTING.items() if option in space}}
    variant = MethodVariant(variant.key, variant.method, variant.title, fixed, variant.space, variant.searched)
    base, new = prepared.dataset.base_classes, prepared.dataset.new_classes
    known = np.isin(prepared.manifest.class_ids, [prepared.manifest.classes.index(name) for name in base])
    hashes = tuple(prepared.hashes[i] for i in np.flatnonzero(known))
    others = prepared.with_classes(new)
    return Search(data, variant, purpose_of(others), tuple(base), add_to_record=ScoreNew(others, hashes))


def purpose_of(new: PreparedDataset) -> str:
    """Part of a run's key: which new names it is asked about, in which words, and on which images.

    3: with this part. 2: both label spaces, each with its own threshold; records from before have neither.
    """
    names = new.manifest.classes
    content = json.dumps([names, new.problem.class_words, sorted(map(str, new.hashes))])
    return f"base-to-new/3 {', '.join(names)} {hashlib.sha256(content.encode()).hexdigest()[:8]}"


# --- scores of one run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoreNew:
    """Adds to a record how its run does on base and new classes: "SETTING/SPACE/base" and "SETTING/SPACE/new".

    `new` has the new classes alone; `base_hashes` are those of the images of the base classes, which a data set on its
    way to a worker leaves behind.
    """

    new: PreparedDataset
    base_hashes: tuple[str | None, ...]

    def __call__(self, results: StackResult, first: PlannedRun) -> list[dict[str, Any]]:
        """Scores of runs that share fold, seed and settings."""
        fold = next((fold for fold in self.new.folds if fold.name == first.fold.name), None)
        if fold is None:  # the new classes have no image there
            return [{"new": {}} for _ in results]
        base, scorer = first.prepared, NameScorer(results, first)
        own, new_words = base.problem.class_words, self.new.problem.class_words
        every = (*own, *new_words)
        among_all = scorer.threshold([every])
        spaces = {  # (space, images) → the names that may be answered, and the threshold that fits so many
            ("own", "base"): (own, scorer.threshold([own])),
            ("own", "new"): (new_words, scorer.threshold(choices(own, len(new_words)))),
            ("all", "base"): (every, among_all),
            ("all", "new"): (every, among_all),
        }
        rows = {
            ("ood", "base"): np.flatnonzero(first.fold.test),
            ("iid", "base"): unused(base.splits(first.fold, first.seed), first.fold, self.base_hashes),
            ("ood", "new"): np.flatnonzero(fold.test),
            ("iid", "new"): np.flatnonzero(fold.pool),
        }
        found: dict[str, list[Scores]] = {}
        for where in SETTINGS:
            for (space, kind), (words, threshold) in spaces.items():
                images = rows[where, kind]
                if images.size:
                    data = base if kind == "base" else self.new
                    found[f"{where}/{space}/{kind}"] = scorer.scores(data, images, words, threshold)
        return [
            {"new": {key: replace(scores[i], eval_set=key) for key, scores in found.items()}}
            for i in range(len(results))
        ]

    def packed(self) -> "PackedScoreNew":
        return PackedScoreNew(PackedDataset.of(self.new), self.base_hashes)


@dataclass(frozen=True, eq=False)
class NameScorer:
    """Trained runs of one fold and seed, asked about images under any list of names."""

    results: StackResult
    first: PlannedRun

    def predict(self, data: PreparedDataset, rows: np.ndarray, words: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities (R, N, C) of images among these names, their labels among them, and their environments."""
        problem, at = data.problem, data.feature_rows(rows)
        groups = problem.environments[at]
        probs = self.results.predict(
            self.first.prepared.problem, problem.features[at], samples=POSTERIOR_SAMPLES, checkpoint=CHECKPOINT,
            groups=groups, classes=words,
        ).probs  # fmt: skip
        position = {word: i for i, word in enumerate(words)}
        labels = torch.tensor([position.get(word, -1) for word in problem.class_words], device=at.device)
        return probs, labels[problem.labels[at]], groups

    def threshold(self, choices: Sequence[Sequence[str]]) -> Tensor:
        """The confidence below which to say "unsure", (R,), from validation images of the base classes.

        Each choice of names is asked about the images that have one of them; all answers together give the threshold.
        """
        base = self.first.prepared
        val = base.splits(self.first.fold, self.first.seed).eval_sets["val"]
        word_of = np.array(base.problem.class_words, dtype=object)[base.manifest.class_ids[val]]
        asked = [(words, val[np.isin(word_of, words)]) for words in choices]
        found = [self.predict(base, rows, words) for words, rows in asked if rows.size]
        return unsure_threshold(torch.cat([probs for probs, *_ in found], 1), torch.cat([y for _, y, _ in found]))

    def scores(self, data: PreparedDataset, rows: np.ndarray, words: Sequence[str], threshold: Tensor) -> list[Scores]:
        class_of = dict(zip(data.problem.class_words, data.manifest.classes, strict=True))
        classes = [class_of.get(word, word) for word in words]
        probs, labels, groups = self.predict(data, rows, words)
        return score(probs, labels, groups, threshold, classes, data.manifest.environments)


def choices(words: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Label spaces of `count` of these names: every one, or where those are many, each name with those after it.

    All names occur equally often. Where there are not as many names, the only label space is that of all.
    """
    count = min(count, len(words))
    if comb(len(words), count) <= MOST_CHOICES:
        return list(combinations(words, count))
    return [tuple(words[(i + k) % len(words)] for k in range(count)) for i in range(len(words))]


def unused(splits: EvalSplits, fold: Fold, hashes: Sequence[str | None]) -> np.ndarray:
    """Images of the training environments that a run has neither learned from nor been chosen by, by content."""
    seen = np.concatenate([splits.train, splits.eval_sets["val"]])
    used = Hashes.of(hashes).same_as(seen)
    used[seen] = True
    return np.flatnonzero(fold.pool & ~used)


@dataclass(frozen=True, eq=False)
class PackedScoreNew:
    """The same on its way to a worker."""

    new: PackedDataset
    base_hashes: tuple[str | None, ...]

    def unpacked(self, device: str) -> ScoreNew:
        return ScoreNew(self.new.unpacked(device), self.base_hashes)


# --- from records to tables ------------------------------------------------------------------------------------------


def searches(bench: Bench) -> list[Search]:
    if not datasets(bench):
        raise DataError(
            "base-to-new needs a data set that names base and new classes (pacs, nico-sub); given: "
            f"{', '.join(bench.options.datasets)}"
        )
    if not names(bench):
        able = [name for name in method_names() if get_method(name).reads_new_names]
        raise BayescalError(f"base-to-new needs methods that can read a new name: {', '.join(able)}")
    return [search_of(bench, data, name) for data in datasets(bench) for name in names(bench)]


def section(bench: Bench) -> Section:
    tables = [_table(bench, data, space) for data in datasets(bench) for space in SPACES]
    text = [
        "Prompts learned on the base classes are given names they have never met. Zero-shot has nothing to forget; a "
        "learned prompt may have. “Each among its own names”: a base image is told apart among the base names, a new "
        "one among the new names. “Among base and new names”: both among all names, so that a learned prompt that "
        "prefers the names it knows is found out. H is the harmonic mean of base and new accuracy."
    ]
    for data in datasets(bench):
        dataset = bench.dataset(data)
        text.append(f"{dataset.title}: base {', '.join(dataset.base_classes)}; new {', '.join(dataset.new_classes)}.")
    if "bayes-cal" in names(bench):
        rivals = [name for name in names(bench) if name != "bayes-cal"]
        ours = compare(bench, "bayes-cal", rivals, datasets(bench), ood_scores)
        text.append("New classes among the new names, in the held-out environment: " + ours)
    return make_section(
        bench,
        "base-to-new",
        "New class names",
        "\n\n".join(text),
        tables,
        limits=(
            "Few new classes (two on PACS) make an easy choice whose difficulty depends on which two they are. The "
            "threshold for “unsure” knows base classes alone: how much is answered of the new ones is part of the "
            "outcome."
        ),
    )


def ood_scores(bench: Bench, data: str, name: str) -> dict[int, float]:
    return new_scores(bench, data, name, "ood/own/new", "accuracy")


def new_scores(bench: Bench, data: str, name: str, key: str, metric: str) -> dict[int, float]:
    """A metric by seed, mean over held-out environments; "SETTING/SPACE/harmonic": of base and new accuracy."""
    # Training-domain validation on base classes, whatever the data set's rule: nothing else exists for new names.
    records = bench.records(search_of(bench, data, name))
    chosen = rule_of(bench, data, "training-domain").choose(records)
    if key.endswith("/harmonic"):
        parts = [new_scores(bench, data, name, key.replace("harmonic", kind), metric) for kind in ("base", "new")]
        return {seed: harmonic_mean(parts[0][seed], parts[1][seed]) for seed in parts[0] if seed in parts[1]}

    def found(record: Record) -> float | None:
        return getattr(record.new[key], metric) if key in record.new else None

    return overall(per_fold(chosen, found), {record.fold for record in records})


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b): high only where both are; 0 where one is."""
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


COLUMNS: tuple[tuple[str, str, str, Better], ...] = (  # images, metric, title, better
    ("base", "accuracy", "base", "high"),
    ("new", "accuracy", "new", "high"),
    ("harmonic", "accuracy", "H", "high"),
    ("new", "selective_accuracy", "new Acc*", "high"),
    ("new", "coverage", "coverage", "high"),
    ("new", "ece", "ECE", "low"),
)


def _table(bench: Bench, data: str, space: str) -> Table:
    columns = [
        Column(f"{where}/{kind}/{metric}", title, better, group=SETTINGS[where])
        for where in SETTINGS
        for kind, metric, title, better in COLUMNS
    ]
    papers = space == "own" and published.is_papers(bench.options.backbone) and data in published.BASE_TO_NEW
    published_ = [
        Column(f"paper/{i}", title, "high", published=True, group="paper, RN50")
        for i, title in enumerate(("OoD new", "OoD new Acc*", "I.I.D. new", "I.I.D. new Acc*"))
    ]
    rows = []
    for name in names(bench):
        records = bench.records(search_of(bench, data, name))
        chosen = rule_of(bench, data, "training-domain").choose(records)
        seeds = finished_seeds(chosen, {record.fold for record in records})
        cells = {
            f"{where}/{kind}/{metric}": value(new_scores(bench, data, name, f"{where}/{space}/{kind}", metric), seeds)
            for where in SETTINGS
            for kind, metric, *_ in COLUMNS
        }
        for i, number in enumerate(published.BASE_TO_NEW.get(data, {}).get(name, ()) if papers else ()):
            cells[f"paper/{i}"] = Value(number / 100)
        rows.append(Row(get_variant(name).title, cells))
    dataset = bench.dataset(data)
    how = {
        "own": "validation images of the base classes among as many base names as there are new ones, every choice "
        "of them in turn",
        "all": "validation images of the base classes among all names",
    }
    note = (
        "Held-out environments averaged. H: harmonic mean of base and new accuracy. Acc*, coverage and ECE: "
        f"of the new classes; threshold from {how[space]}."
    )
    title = f"{dataset.title}: base and new classes, {SPACES[space]}"
    return Table(f"base-to-new/{data}/{space}", title, (*columns, *(published_ if papers else ())), tuple(rows), note)


EXPERIMENT = Experiment("base-to-new", "classes whose names were not in training", searches, section)
