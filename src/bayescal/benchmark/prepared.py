"""A data set under a backbone, ready to train on: features once, and which images each run may use for what.

    Manifest ─► content hashes ─► sets of every (fold, seed) ─► features of the images in them ─► Problem

Only images that some set names are encoded (of ColoredMNIST's 60,000 digits a search needs 10,200), and all where some
classes are kept for new names (base-to-new).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones.checks import name_notes
from bayescal.backbones.mini import label
from bayescal.benchmark.splits import EvalSplits, draw_splits, leave_out
from bayescal.data.datasets.base import Dataset, Fold
from bayescal.data.manifest import Manifest
from bayescal.data.splits import Hashes
from bayescal.errors import BayescalWarning, DataError
from bayescal.training.problem import Problem

if TYPE_CHECKING:
    from bayescal.backbones.base import Backbone
    from bayescal.backbones.defaults import TrainingDefaults
    from bayescal.features import FeatureBank
    from bayescal.features.bank import Encoder
    from bayescal.features.content_index import ContentIndex


def portable_name(backbone: str) -> str:
    """A backbone's name as records say it, which holds on any machine and for good.

    Without folders, "RN50:/models/RN50.pt" → "RN50:RN50.pt"; with the version of what the package brings, "mini" →
    "mini 2".
    """
    architecture, *rest = label(backbone).split(":")
    return ":".join([architecture.replace("/", "-"), *(Path(part).name for part in rest)])


@dataclass(frozen=True)
class BackboneInfo:
    """What runs have to know about their backbone besides its text tower."""

    name: str  # portable
    fingerprint: str
    defaults: "TrainingDefaults"
    views: int = 0  # augmented views of each training image; 0: the test transform alone


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """What the runs of a data set share. `rows` maps a manifest row to its feature, −1 where it has none."""

    dataset: Dataset
    manifest: Manifest
    hashes: tuple[str | None, ...]
    backbone_info: BackboneInfo
    problem: Problem
    rows: np.ndarray  # (N,) int64
    shots: int
    val_shots: int
    _splits: dict[tuple[str, int], EvalSplits] = field(default_factory=dict, repr=False)

    @property
    def folds(self) -> list[Fold]:
        return self.dataset.folds(self.manifest)

    @property
    def device(self) -> torch.device:
        return self.problem.features.device

    @cached_property
    def _numbered(self) -> Hashes:
        return Hashes.of(self.hashes)

    def splits(self, fold: Fold, seed: int) -> EvalSplits:
        key = (fold.name, seed)
        if key not in self._splits:
            drawn = draw_splits(self.dataset, self.manifest, self._numbered, fold, seed, self.shots, self.val_shots)
            left_out = fold.left_out
            self._splits[key] = drawn if left_out is None else leave_out(drawn, self.manifest, left_out)
        return self._splits[key]

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

    def with_classes(self, names: Sequence[str]) -> "PreparedDataset":
        """The same images of these classes alone, and nothing of the others, not even their names."""
        missing = [name for name in names if name not in self.manifest.classes]
        if missing:
            raise DataError(f"{self.dataset.title}: there is no class {missing[0]!r} in the data")
        keep = np.isin(self.manifest.class_ids, [self.manifest.classes.index(name) for name in names])
        old = self.manifest
        class_words = dict(zip(old.classes, old.class_words, strict=True))
        environment_words = dict(zip(old.environments, old.environment_words, strict=True))
        environments = [old.environments[i] for i in old.environment_ids[keep]]
        manifest = Manifest.from_columns(
            [old.paths[i] for i in np.flatnonzero(keep)],
            [old.classes[i] for i in old.class_ids[keep]],
            environments,
            old.splits[keep].tolist(),
            class_words={name: class_words[name] for name in names},
            environment_words={name: environment_words[name] for name in set(environments)},
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
        return replace(self, manifest=manifest, hashes=hashes, problem=problem, rows=rows, _splits={})


def prepare_dataset(
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
    encoder: "Encoder | None" = None,
) -> PreparedDataset:
    """Hash the images, draw the sets of every fold and seed, and encode the images that are in one of them.

    `encoder`: what encodes images that the cache does not have; None: this process.
    """
    from bayescal.features import AUTO, FeatureBank
    from bayescal.features.extract import compute

    _warn_of_names(manifest, backbone.name)
    shots, val_shots = shots or dataset.shots, val_shots or dataset.val_shots
    bank = FeatureBank(backbone, cache or AUTO, encoder=encoder or compute)
    contents = bank.contents(manifest.paths, progress=progress)
    if contents.problems:
        raise DataError(_bad_images(dataset, {manifest.paths[i]: why for i, why in contents.problems.items()}))
    hashes = contents.hexes()
    numbered = Hashes.of(hashes)
    found = {
        (fold.name, seed): draw_splits(dataset, manifest, numbered, fold, seed, shots, val_shots)
        for fold in dataset.folds(manifest)
        for seed in seeds
    }
    drawn = [splits.rows for splits in found.values()]
    wanted = np.unique(np.concatenate([*drawn, _base_to_new_rows(dataset, manifest)]))
    features = _encode(bank, dataset, manifest, wanted, contents, progress=progress)
    rows = np.full(len(manifest), -1)
    rows[wanted] = np.arange(len(wanted))
    problem = Problem.of(
        backbone.to(device), features.to(device), manifest.class_ids[wanted], manifest.environment_ids[wanted],
        manifest.class_words, manifest.environment_words,
    )  # fmt: skip
    views = backbone.defaults.views if views is None else views
    if views:
        trained = np.unique(np.concatenate([splits.train for splits in found.values()]))
        seen = _encode(bank, dataset, manifest, trained, contents, views, progress)
        view_rows = torch.full((len(wanted),), -1)
        view_rows[torch.from_numpy(rows[trained])] = torch.arange(len(trained))
        problem = replace(problem, views=seen.to(device), view_rows=view_rows.to(device))
    backbone_info = BackboneInfo(portable_name(backbone.name), backbone.fingerprint, backbone.defaults, views)
    return PreparedDataset(dataset, manifest, tuple(hashes), backbone_info, problem, rows, shots, val_shots, found)


def _warn_of_names(manifest: Manifest, backbone: str) -> None:
    """Trained all the same: published data sets are what they are."""
    notes = name_notes(backbone, manifest.class_words, "class", manifest.classes)
    for said in (notes.alike, notes.strange):
        if said:
            warnings.warn(said, BayescalWarning, stacklevel=3)


def _encode(
    bank: "FeatureBank",
    dataset: Dataset,
    manifest: Manifest,
    rows: np.ndarray,
    contents: "ContentIndex",
    views: int | None = None,
    progress: bool = False,
) -> Tensor:
    """Features (n, D) of these manifest rows, or (n, V, D) of their views; an image that cannot be read is refused."""
    paths, contents = [manifest.paths[i] for i in rows], contents.take(rows)
    if views is None:
        encoded = bank.encode(paths, progress=progress, contents=contents)
    else:
        encoded = bank.encode_views(paths, views, progress=progress, contents=contents)
    if encoded.failures:
        raise DataError(_bad_images(dataset, {failure.name: failure.reason for failure in encoded.failures}))
    return encoded.features


def _base_to_new_rows(dataset: Dataset, manifest: Manifest) -> np.ndarray:
    """All images, where some classes are kept for new names: whichever seeds are asked for, the same are tested on."""
    return np.arange(len(manifest) if set(dataset.new_classes) & set(manifest.classes) else 0)


def _bad_images(dataset: Dataset, problems: Mapping[str, str]) -> str:
    name, why = next(iter(problems.items()))
    return (
        f"{dataset.title}: {len(problems)} images cannot be read, so results would not be comparable; the first is "
        f"{name}: {why.rstrip('.')}. `bayescal data check` lists them all."
    )
