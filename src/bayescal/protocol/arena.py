"""A data set under a backbone, ready to train on: features once, and which images each run may use for what.

    Manifest ─► content hashes ─► sets of every (fold, seed) ─► features of the images in them ─► Problem

Only images that some set names are encoded (of ColoredMNIST's 60,000 digits a search needs 10,200), and those of
classes that are kept for new names.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayescal.data.datasets.base import Dataset, Fold
from bayescal.data.manifest import Manifest
from bayescal.data.splits import Hashes, check_leaks, few_shot_split
from bayescal.errors import DataError
from bayescal.stacks import Problem

if TYPE_CHECKING:
    from bayescal.backbones.base import Backbone
    from bayescal.backbones.defaults import TrainingDefaults
    from bayescal.cluster import Cluster


def portable_name(backbone: str) -> str:
    """A backbone's name without this machine's folders: "RN50:/models/RN50.pt" → "RN50:RN50.pt"."""
    architecture, *rest = backbone.split(":")
    return ":".join([architecture.replace("/", "-"), *(Path(part).name for part in rest)])


@dataclass(frozen=True)
class Facts:
    """What a record says about the backbone."""

    name: str  # portable
    fingerprint: str
    defaults: "TrainingDefaults"
    views: int = 0  # augmented views of each training image; 0: the test transform alone


@dataclass(frozen=True, eq=False)
class Sets:
    """The images of one fold and seed, as manifest rows. No image is both in a set that chooses and one that reports.

    `judged` has "val" (training environments), "test", and where the data allow it "test_val" (of the test
    distribution), "ood_val" (of neither) and "test_rest": the test images that are left when "test_val" was drawn from
    them. A rule that looked at "test_val" reports on "test_rest", the others on the whole "test".
    """

    train: np.ndarray
    judged: Mapping[str, np.ndarray]
    digest: str  # of all sets, by content and label: equal images, equal digest, on every machine
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([self.train, *self.judged.values()])


def draw_sets(
    dataset: Dataset,
    manifest: Manifest,
    hashes: Hashes | Sequence[str | None],
    fold: Fold,
    seed: int,
    shots: int,
    val_shots: int,
) -> Sets:
    """The sets of a fold for one seed: balanced few-shot draws, and no test image in any other set (by content)."""
    hashes = Hashes.of(hashes)
    test = np.flatnonzero(fold.test)
    tested = hashes.same_as(test)
    names = {"class_names": manifest.classes, "environment_names": manifest.environments}
    ids = (manifest.class_ids, manifest.environment_ids)
    split = few_shot_split(
        *ids, train_environments=fold.train_environments, shots=shots, hashes=hashes,
        val_shots=0 if fold.val is not None else val_shots, seed=seed, forbidden=tested, pool=fold.pool, **names,
    )  # fmt: skip
    judged, notes = {"val": split.val}, list(split.notes)
    taken = hashes.same_as(split.train)

    def draw(part: str, mask: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
        # A place need not have every class, so only the images in question are shown: draws go by names and contents.
        rows = np.flatnonzero(mask & ~forbidden)
        if not rows.size:
            raise DataError(f"{dataset.title}, {fold.name}: every image of {part} is also in the test or training set")
        few = few_shot_split(
            *(column[rows] for column in ids), train_environments=np.unique(manifest.environment_ids[rows]),
            shots=val_shots, val_shots=0, seed=seed, hashes=hashes.take(rows), **names,
        )  # fmt: skip
        notes.extend(_shortages(part, manifest, rows[few.train], val_shots))
        return rows[few.train]

    if fold.val is not None:
        judged["val"] = draw("val", fold.val, tested | taken)
    if not judged["val"].size:
        raise DataError(f"{dataset.title}, {fold.name}: no image is left for validation. Use fewer --shots.")
    if fold.test_val is not None:
        judged["test_val"] = draw("test_val", fold.test_val, tested | taken)
    else:
        judged["test_val"] = draw("test_val", fold.test, taken)
        judged["test_rest"] = test[~np.isin(hashes.numbers[test], hashes.numbers[judged["test_val"]])]
    if fold.ood_val is not None:
        judged["ood_val"] = draw("ood_val", fold.ood_val, tested | taken)
    judged["test"] = test
    for name, rows in (("train", split.train), ("val", judged["val"])):
        shared = test[hashes.same_as(rows)[test]]  # none, unless a draw went wrong
        paths = ([manifest.paths[i] for i in some] for some in (rows, shared))
        check_leaks(hashes.at(rows), hashes.at(shared), *paths, names=(name, "test"))
    return Sets(split.train, judged, _digest(split.train, judged, hashes, manifest), tuple(notes))


def _shortages(part: str, manifest: Manifest, rows: np.ndarray, wanted: int) -> list[str]:
    """What there is too little of among the images of a part, by class."""
    counts = np.bincount(manifest.class_ids[rows], minlength=len(manifest.classes))
    return [
        f"{part}: {count} of {wanted} images of {name}."
        for name, count in zip(manifest.classes, counts, strict=True)
        if count < wanted
    ]


def _digest(train: np.ndarray, judged: Mapping[str, np.ndarray], hashes: Hashes, manifest: Manifest) -> str:
    """Of the images of all sets by content, and of what each is labelled as: a corrected label is another split."""
    digest = hashlib.sha256()
    for name, rows in sorted({"train": train, **judged}.items()):
        classes = [manifest.classes[c] for c in manifest.class_ids[rows]]
        environments = [manifest.environments[e] for e in manifest.environment_ids[rows]]
        images = [f"{h} {c!r} {e!r}" for h, c, e in zip(hashes.at(rows), classes, environments, strict=True)]
        digest.update(f"{name}:{','.join(sorted(images))};".encode())  # sorted: the order of the files plays no part
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Arena:
    """What the runs of a data set share. `rows` maps a manifest row to its feature, −1 where it has none."""

    dataset: Dataset
    manifest: Manifest
    hashes: tuple[str | None, ...]
    facts: Facts
    problem: Problem
    rows: np.ndarray  # (N,) int64
    shots: int
    val_shots: int
    _sets: dict[tuple[str, int], Sets] = field(default_factory=dict, repr=False)

    @property
    def folds(self) -> list[Fold]:
        return self.dataset.folds(self.manifest)

    @property
    def device(self) -> torch.device:
        return self.problem.features.device

    @cached_property
    def _numbered(self) -> Hashes:
        return Hashes.of(self.hashes)

    def sets(self, fold: Fold, seed: int) -> Sets:
        key = (fold.name, seed)
        if key not in self._sets:
            self._sets[key] = draw_sets(
                self.dataset, self.manifest, self._numbered, fold, seed, self.shots, self.val_shots
            )
        return self._sets[key]

    def feature_rows(self, rows: np.ndarray) -> Tensor:
        """Rows of the problem for rows of the manifest."""
        found = self.rows[rows]
        self._refuse_missing(int((found < 0).sum()), "features")
        return torch.from_numpy(found).to(self.device)

    def training_rows(self, rows: np.ndarray) -> Tensor:
        """As `feature_rows`, of images that are trained on: these have views, where the problem has any."""
        found = self.feature_rows(rows)
        if self.problem.view_rows is not None:
            self._refuse_missing(int((self.problem.view_rows[found] < 0).sum()), "augmented views")
        return found

    def _refuse_missing(self, count: int, what: str) -> None:
        if count:
            raise DataError(
                f"{self.dataset.title}: {count} images of this split have no {what} here. A packed data set holds the "
                "seeds and shots it was packed for: pack it again with these."
            )

    def with_classes(self, names: Sequence[str]) -> "Arena":
        """The same images of these classes alone, and nothing of the others, not even their names."""
        missing = [name for name in names if name not in self.manifest.classes]
        if missing:
            raise DataError(f"{self.dataset.title}: there is no class {missing[0]!r} in the data")
        keep = np.isin(self.manifest.class_ids, [self.manifest.classes.index(name) for name in names])
        old = self.manifest
        words = dict(zip(old.classes, old.class_words, strict=True))
        places = dict(zip(old.environments, old.environment_words, strict=True))
        environments = [old.environments[i] for i in old.environment_ids[keep]]
        manifest = Manifest.from_columns(
            [old.paths[i] for i in np.flatnonzero(keep)],
            [old.classes[i] for i in old.class_ids[keep]],
            environments,
            old.splits[keep].tolist(),
            class_words={name: words[name] for name in names},
            environment_words={name: places[name] for name in set(environments)},
        )
        have = self.rows[keep] >= 0
        chosen = torch.from_numpy(self.rows[keep][have]).to(self.device)
        rows = np.full(len(manifest), -1)
        rows[have] = np.arange(int(have.sum()))
        problem = replace(
            self.problem,
            features=self.problem.features[chosen],
            labels=torch.from_numpy(manifest.class_ids[have]).to(self.device),
            environments=torch.from_numpy(manifest.environment_ids[have]).to(self.device),
            class_words=manifest.class_words,
            environment_words=manifest.environment_words,
            view_rows=None if self.problem.view_rows is None else self.problem.view_rows[chosen],
        )
        hashes = tuple(self.hashes[i] for i in np.flatnonzero(keep))
        return replace(self, manifest=manifest, hashes=hashes, problem=problem, rows=rows, _sets={})


def open_arena(
    dataset: Dataset,
    manifest: Manifest,
    backbone: "Backbone",
    seeds: Sequence[int],
    *,
    shots: int | None = None,
    val_shots: int | None = None,
    views: int | None = None,
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    progress: bool = False,
    cluster: "Cluster | None" = None,
) -> Arena:
    """Hash the images, draw the sets of every fold and seed, and encode the images that are in one of them."""
    from bayescal.features import FeatureBank
    from bayescal.features.compute import digest_all, hex_of
    from bayescal.features.contents import Contents
    from bayescal.features.pipeline import usable_cores

    shots, val_shots = shots or dataset.shots, val_shots or dataset.val_shots
    digests, unreadable = digest_all(manifest.paths, usable_cores())
    hashes = hex_of(digests, unreadable)
    if unreadable:
        raise DataError(_bad_images(dataset, {manifest.paths[i]: why for i, why in unreadable.items()}))
    numbered = Hashes.of(hashes)
    found = {
        (fold.name, seed): draw_sets(dataset, manifest, numbered, fold, seed, shots, val_shots)
        for fold in dataset.folds(manifest)
        for seed in seeds
    }
    wanted = np.unique(np.concatenate([*(sets.rows for sets in found.values()), _new_rows(dataset, manifest)]))
    bank = FeatureBank(backbone, cache, cluster=cluster)
    known = lambda images: Contents.known(digests[images], {})  # noqa: E731
    encoded = bank.encode([manifest.paths[i] for i in wanted], progress=progress, contents=known(wanted))
    if encoded.failures:
        raise DataError(_bad_images(dataset, {failure.name: failure.reason for failure in encoded.failures}))
    rows = np.full(len(manifest), -1)
    rows[wanted] = np.arange(len(wanted))
    views = backbone.defaults.views if views is None else views
    extra: dict[str, Any] = {}
    if views:
        trained = np.unique(np.concatenate([sets.train for sets in found.values()]))
        paths = [manifest.paths[i] for i in trained]
        seen = bank.encode_views(paths, views, progress=progress, contents=known(trained))
        view_rows = torch.full((len(wanted),), -1)
        view_rows[torch.from_numpy(rows[trained])] = torch.arange(len(trained))
        extra = {"views": seen.features.to(device), "view_rows": view_rows.to(device)}
    problem = Problem.of(
        backbone.to(device), encoded.features.to(device), manifest.class_ids[wanted], manifest.environment_ids[wanted],
        manifest.class_words, manifest.environment_words, **extra,
    )  # fmt: skip
    facts = Facts(portable_name(backbone.name), backbone.fingerprint, backbone.defaults, views)
    return Arena(dataset, manifest, tuple(hashes), facts, problem, rows, shots, val_shots, found)


def _new_rows(dataset: Dataset, manifest: Manifest) -> np.ndarray:
    """All images of new classes (base-to-new): whichever seeds were asked for, the same ones are tested on."""
    new = [manifest.classes.index(name) for name in dataset.new_classes if name in manifest.classes]
    return np.flatnonzero(np.isin(manifest.class_ids, new))


def _bad_images(dataset: Dataset, problems: Mapping[str, str]) -> str:
    name, why = next(iter(problems.items()))
    return (
        f"{dataset.title}: {len(problems)} images cannot be read, so results would not be comparable; the first is "
        f"{name}: {why.rstrip('.')}. `bayescal data check` lists them all."
    )
