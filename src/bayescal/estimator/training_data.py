"""Which images of a manifest a model may learn from, and which it is validated on."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescal.data import Manifest, few_shot_split, split_from_manifest
from bayescal.errors import BayescalWarning, DataError
from bayescal.features.cache_folder import AUTO, cache_folder
from bayescal.features.content_index import ContentIndex
from bayescal.features.threads import usable_cores
from bayescal.util.suggest import or_did_you_mean


@dataclass(frozen=True)
class TrainingData:
    """The images to learn from, and what was kept apart."""

    manifest: Manifest  # training and validation images alone
    validation: np.ndarray | None  # mask over them; None: the classifier draws its own
    contents: ContentIndex | None  # of these images, where looking for leaks has hashed them
    left_out: dict[str, int]  # environment → images
    n_test: int
    unseen: str | None  # an image that is not learned from, to try the model on


def choose_training_data(
    manifest: Manifest,
    leave_out: Sequence[str],
    shots: int | None,
    val_shots: int | None,
    seed: int,
    cache: str | Path | None = AUTO,
    progress: bool = False,
) -> TrainingData:
    """Leave out environments; respect the manifest's splits, and refuse images that occur in two of them.

    `cache`: the folder that remembers the hashes of images behind URLs, as for a `FeatureBank`.
    """
    allowed = ~in_environments(manifest, leave_out, "--leave-out")
    if not allowed.any():
        raise DataError("--leave-out names every environment: none is left to learn from")
    contents = _refuse_leaks(manifest, cache_folder(cache), progress)
    train, val = _parts(manifest, allowed)
    if not train.any():
        raise DataError("the environments that are not left out have no image with the split train")
    _check_classes(manifest, train)
    if val.any():
        if shots is not None:
            train = _draw(manifest, train, shots, seed, contents)
        if val_shots is not None:
            val = _draw(manifest, val, val_shots, seed, contents)
        _warn_about_missing_cells(manifest.select(train))
    used = train | val
    unseen = np.flatnonzero(~used)
    return TrainingData(
        manifest=manifest.select(used),
        validation=val[used] if val.any() else None,
        contents=None if contents is None else contents.take(np.flatnonzero(used)),
        left_out={name: int((manifest.environment_ids == _index(manifest, name)).sum()) for name in leave_out},
        n_test=int((allowed & (manifest.splits == "test")).sum()),
        unseen=manifest.paths[unseen[0]] if len(unseen) else None,
    )


def in_environments(manifest: Manifest, names: Sequence[str], option: str) -> np.ndarray:
    """Mask of the images in these environments; an unknown name is answered with the nearest."""
    for name in names:
        if name not in manifest.environments:
            hint = or_did_you_mean(name, manifest.environments)
            raise DataError(
                f"{option}: there is no environment {name!r}{hint} There are: {', '.join(manifest.environments)}"
            )
    return np.isin(manifest.environment_ids, [_index(manifest, name) for name in names])


def _index(manifest: Manifest, environment: str) -> int:
    return manifest.environments.index(environment)


def _refuse_leaks(manifest: Manifest, cache: Path | None, progress: bool) -> ContentIndex | None:
    """Refuse a manifest that has one image in two splits, by content; what was hashed for it, if there are splits."""
    if not _has_splits(manifest):
        return None
    contents = ContentIndex.of(manifest.paths, usable_cores(), cache, progress)  # what is unreadable is said in `fit`
    split_from_manifest(manifest, contents.hexes())
    return contents


def _has_splits(manifest: Manifest) -> bool:
    return bool((manifest.splits != "").any())


def _parts(manifest: Manifest, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks of what may be trained on and of what is marked for validation."""
    if not _has_splits(manifest):
        return allowed, np.zeros_like(allowed)
    if unmarked := int((manifest.splits == "").sum()):
        _warn(f"{unmarked} images have no split, while others have one: they are not used")
    return allowed & (manifest.splits == "train"), allowed & (manifest.splits == "val")


def _check_classes(manifest: Manifest, train: np.ndarray) -> None:
    present = set(manifest.class_ids[train].tolist())
    missing = [name for number, name in enumerate(manifest.classes) if number not in present]
    if missing:
        raise DataError(
            f"no image of {', '.join(missing)} is left to learn from: "
            f"{'it occurs' if len(missing) == 1 else 'they occur'} only in what is kept apart (left-out environments, "
            "val and test images). Leave the class out of the data, or give it training images"
        )


def _draw(manifest: Manifest, pool: np.ndarray, shots: int, seed: int, contents: ContentIndex | None) -> np.ndarray:
    """Mask of `shots` images per class, drawn from the pool as evenly over environments as possible; of copies one."""
    split = few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=np.unique(manifest.environment_ids[pool]).tolist(),
        shots=shots,
        val_shots=0,
        seed=seed,
        pool=pool,
        hashes=None if contents is None else contents.hexes(),
        class_names=manifest.classes,
        environment_names=manifest.environments,
    )
    for message in split.notes:
        _warn(message)
    return np.isin(np.arange(len(manifest)), split.train)


def _warn_about_missing_cells(manifest: Manifest) -> None:
    for class_name, environment in manifest.missing_cells():
        _warn(f"{class_name}: no training image in {environment}")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
