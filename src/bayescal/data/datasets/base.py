"""What a named data set is, and how its images are divided into training, validation and test parts."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bayescal.data.manifest import Manifest, read_manifest
from bayescal.errors import BayescalWarning, DataError
from bayescal.util.regular import read_file

SELECTIONS = ("training-domain", "test-domain", "ood")
SHIFTS = ("diversity", "correlation", "")
_SHOWN = 5


WITHOUT = " without "  # between the name of a fold and the number of the environment that its inner fold leaves out


@dataclass(frozen=True, eq=False)
class Fold:
    """One division of a manifest of N images: what may be learned from, and what it is measured on.

    Masks are (N,) bool and no two of them share an image. `None` means that the data set does not design that part:
    the protocol then draws training-domain validation images from `pool` and test-domain ones from `test`.
    """

    name: str  # the environment that is held out, or "test"
    train_environments: tuple[int, ...]  # ids into manifest.environments
    pool: np.ndarray  # few-shot training and training-domain validation images are drawn from these
    test: np.ndarray
    test_val: np.ndarray | None = None  # of the test distribution
    ood_val: np.ndarray | None = None  # of neither the training nor the test distribution
    val: np.ndarray | None = None  # of the training distribution
    left_out: int | None = None  # a training environment that is not learned from, but measured on

    def without_each_environment(self) -> "list[Fold]":
        """The inner folds: every training environment left out once. One alone cannot be left out."""
        if len(self.train_environments) < 2:
            return []
        return [replace(self, name=f"{self.name}{WITHOUT}{e}", left_out=e) for e in self.train_environments]

    def __post_init__(self) -> None:
        taken = np.zeros(self.pool.shape, dtype=np.int64)
        for part in ("pool", "test", "test_val", "ood_val", "val"):
            mask = getattr(self, part)
            if mask is None:
                continue
            if mask.dtype != np.bool_ or mask.shape != self.pool.shape:
                raise DataError(f"Fold {self.name!r}: {part} must be a mask over all images; found {mask.dtype}.")
            taken += mask
        if taken.size and taken.max() > 1:
            raise DataError(f"Fold {self.name!r}: {int((taken > 1).sum())} images are in more than one part.")
        if not self.pool.any() or not self.test.any():
            raise DataError(f"Fold {self.name!r}: there must be images to learn from and images to test on.")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set by name: what it looks like on disk, what its names mean, and how it is used in experiments."""

    name: str  # as typed: "office-home"
    title: str  # as printed: "OfficeHome"
    shift: str  # what changes between environments: "diversity", "correlation" or ""
    class_words: Mapping[str, str]  # class → what the text tower is shown; the keys are the classes
    environment_words: Mapping[str, str]
    images: int | None  # published size
    layout: str  # the tree that is expected
    source: str  # what to download from where
    citation: str
    read: Callable[[Path], Manifest]
    folds: Callable[[Manifest], list[Fold]]
    selection: str = "training-domain"
    shots: int = 16
    val_shots: int = 16
    balanced: bool = True  # shots are spread evenly over environments; False: as the images of the class are
    base_classes: tuple[str, ...] = ()  # base-to-new: these are learned from …
    new_classes: tuple[str, ...] = ()  # … and these are tested on
    download: Callable[[Path], Path] | None = None  # fetches into a folder, and says what to read

    def __post_init__(self) -> None:
        if self.selection not in SELECTIONS or self.shift not in SHIFTS:
            raise DataError(f"{self.name}: unknown selection {self.selection!r} or shift {self.shift!r}.")
        if unknown := {*self.base_classes, *self.new_classes} - set(self.class_words):
            raise DataError(f"{self.name}: {min(unknown)!r} is not one of its classes.")


def leave_one_out_folds(manifest: Manifest, by_split: bool = False) -> list[Fold]:
    """One fold per environment: learn from the others, test on it.

    `by_split`: only images with the split train are learned from and only those with the split test are tested on.
    An environment that alone has some class cannot be held out, and a warning says so.
    """
    train = manifest.splits == "train" if by_split else np.ones(len(manifest), dtype=bool)
    test = manifest.splits == "test" if by_split else train
    present = [e for e in range(len(manifest.environments)) if (manifest.environment_ids == e).any()]
    if len(present) < 2:
        raise DataError(
            "There is one environment only, so none can be held out for the test. Add images from another "
            "environment, or a split column that says which images are for train, val and test."
        )
    needed = np.unique(manifest.class_ids)
    folds, skipped = [], []
    for environment in present:
        held_out = manifest.environment_ids == environment
        missing = np.setdiff1d(needed, manifest.class_ids[~held_out & train])
        if missing.size:
            names = [manifest.classes[c] for c in missing]
            skipped.append(f"{manifest.environments[environment]} (the only environment with {_first(names)})")
            continue
        others = tuple(e for e in present if e != environment)
        folds.append(Fold(manifest.environments[environment], others, pool=~held_out & train, test=held_out & test))
    if not folds:
        raise DataError(
            f"No environment can be held out for the test, because the others would lack a class: {_first(skipped)}. "
            "Leave those classes out of the data, or add images of them."
        )
    if skipped:
        _warn(f"not held out for the test, because the others lack a class: {_first(skipped)}")
    return folds


def part_folds(manifest: Manifest, validation: str | None = None) -> list[Fold]:
    """The one fold that the split column describes.

    `validation` says what the images with the split val are: "training-domain", "test-domain" or "ood". None: each
    goes by its environment: one that is trained on, else one that is tested on, else neither (ood).
    """
    if validation not in (None, *SELECTIONS):
        raise DataError(f"validation {validation!r}: expected one of {', '.join(SELECTIONS)}.")
    train, val, test = (manifest.splits == split for split in ("train", "val", "test"))
    for split, mask in (("train", train), ("test", test)):
        if not mask.any():
            raise DataError(
                f'No image has the split "{split}". Fill the split column with train, val and test, or leave it '
                "out: every environment is then held out once."
            )
    if unmarked := int((manifest.splits == "").sum()):
        _warn(f"{unmarked} images have no split, while others have one: they are not used")
    trained_on, tested_on = (np.isin(manifest.environment_ids, manifest.environment_ids[m]) for m in (train, test))
    if validation is None:
        parts = (val & trained_on, val & ~trained_on & tested_on, val & ~trained_on & ~tested_on)
    else:
        parts = tuple(val if validation == kind else np.zeros_like(val) for kind in SELECTIONS)
    given, test_val, ood_val = (mask if mask.any() else None for mask in parts)
    environments = tuple(int(e) for e in np.unique(manifest.environment_ids[train]))
    return [Fold("test", environments, pool=train, test=test, test_val=test_val, ood_val=ood_val, val=given)]


def custom_dataset(path: Path) -> Dataset:
    """Describe any folder, CSV or JSON file as a data set: by its split column, else one fold per environment."""
    return describe(path, read_custom(path))


def read_custom(path: Path) -> Manifest:
    """Read a folder or list as `fit` does."""
    return read_manifest(path)


def text_of(file: Path) -> str:
    """A list that a data set comes with, as text."""
    try:
        return read_file(file).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{file}: is not UTF-8 text (line {line}). Download it again, or save it as UTF-8.") from error


def describe(path: str | Path, manifest: Manifest) -> Dataset:
    """As `custom_dataset`, for a manifest that has been read already."""
    has_parts = bool((manifest.splits != "").any())
    path = Path(path).expanduser().absolute()
    name = path.stem if path.is_file() else path.name
    return Dataset(
        name=name,
        title=name,
        shift="",
        class_words=dict(zip(manifest.classes, manifest.class_words, strict=True)),
        environment_words=dict(zip(manifest.environments, manifest.environment_words, strict=True)),
        images=None,
        layout="    a folder environment/class/image, or a CSV or JSON file: see docs/data-layout.md",
        source="your own images",
        citation="",
        read=read_custom,
        folds=part_folds if has_parts else leave_one_out_folds,
        selection=_selection(manifest) if has_parts else "training-domain",
    )


def _selection(manifest: Manifest) -> str:
    """Choose by training-domain validation, unless the data give only another kind of validation part."""
    try:
        (fold,) = part_folds(manifest)
    except DataError:  # nothing to train on or to test on: an experiment will say so, and `fit` may not mind
        return "training-domain"
    given = [part for part in ("val", "test_val", "ood_val") if getattr(fold, part) is not None]
    if given == ["test_val"]:
        return "test-domain"
    return "ood" if given == ["ood_val"] else "training-domain"


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
