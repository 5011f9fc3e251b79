"""Reading data sets that lie in folders `environment/class/image`, as they come out of their archives.

A copy is checked against what the data set is known to hold. What is missing is answered with the layout that is
expected and the page to download it from; what is there but unknown is left out, and a note says so.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayescal.data.datasets.base import Dataset, leave_one_out_folds
from bayescal.data.file_tree import find_images, is_visible
from bayescal.data.manifest import Manifest, read_manifest
from bayescal.data.names import to_words
from bayescal.errors import BayescalWarning, DataError

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz")
_DEPTH = 3  # folders that archives put around the environments
_SHOWN = 5


@dataclass(frozen=True)
class Expected:
    """What a copy of a data set has to hold, and what to say where it does not."""

    title: str
    class_words: Mapping[str, str]
    environment_words: Mapping[str, str]
    images: int | None
    layout: str
    source: str
    complete: bool = True  # every class occurs in every environment

    def refusal(self, path: Path, problem: str) -> DataError:
        """An error that says what is wrong, what should be there and where to get it."""
        return DataError(
            f"{path}: {problem}\nExpected {self.title} like this:\n{self.layout}\nWhere it comes from: {self.source}"
        )

    def is_list(self, path: Path) -> bool:
        """Tell a CSV or JSON file, as `bayescal data prepare` writes it, from a folder; refuse anything else."""
        if not path.exists():
            raise self.refusal(path, "there is no such folder or file.")
        if path.is_dir():
            return False
        if path.suffix.lower() in ARCHIVES:
            raise self.refusal(path, "is an archive. Unpack it first: `bayescal data prepare` does.")
        return True

    def read_list(self, path: Path) -> Manifest:
        """Read a CSV or JSON file and check its names."""
        return self.checked(read_manifest(path), path)

    def checked(self, manifest: Manifest, path: Path) -> Manifest:
        """The manifest with this data set's words; refused if names are missing or unknown."""
        for kind, found, words in (
            ("class", manifest.classes, self.class_words),
            ("environment", manifest.environments, self.environment_words),
        ):
            if missing := [name for name in words if name not in found]:
                raise self.refusal(path, f"no images of the {kind} {first(missing)}.")
            if unknown := [name for name in found if name not in words]:
                raise self.refusal(path, f"{self.title} has no {kind} {first(unknown)}.")
        if self.images is not None and len(manifest) != self.images:
            _warn(
                f"{path}: found {len(manifest):,} images, but {self.title} has {self.images:,}. Is the copy complete?"
            )
        missing = [f"{name} in {environment}" for name, environment in manifest.missing_cells()]
        if missing and self.complete:
            _warn(f"{path}: no image of {first(missing)}")
        return manifest.with_words(self.class_words, self.environment_words)


@dataclass(frozen=True)
class Tree:
    """A data set in folders. Spellings: other names that a class or environment folder goes by."""

    expected: Expected
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def read(self, path: Path) -> Manifest:
        """A folder that holds the environments, or one around it, or a CSV or JSON file."""
        path = Path(path).expanduser()
        if self.expected.is_list(path):
            return self.expected.read_list(path)
        rows = list(self.rows(path))
        if not rows:
            raise self.expected.refusal(path, "found the environments' folders and no images of known classes.")
        paths, classes, environments = zip(*rows, strict=True)
        return self.expected.checked(Manifest.from_columns(paths, classes, environments), path)

    def rows(self, path: Path) -> Iterator[tuple[str, str, str]]:
        """Path, class and environment of each image."""
        root, folders = self.environment_folders(path)
        unknown = []
        for environment, folder in folders.items():
            known, strange = self._named(_class_level(folder), self.expected.class_words)
            unknown += [f"{folder.name}/{name}" for name in strange]
            for class_name, class_folder in known.items():
                for image in find_images(class_folder):
                    yield os.path.abspath(image), class_name, environment
        if unknown:
            _warn(
                f"{root}: left out {len(unknown)} folders that are no class of {self.expected.title}: {first(unknown)}"
            )

    def environment_folders(self, path: Path) -> tuple[Path, dict[str, Path]]:
        """The folder that holds the environments, and the folder of each; archives put others around them."""
        best: tuple[Path, dict[str, Path]] = (path, {})
        for folder in _folders_around(path, _DEPTH):
            known, _ = self._named(folder, self.expected.environment_words)
            if len(known) > len(best[1]):
                best = (folder, known)
            if len(known) == len(self.expected.environment_words):
                break
        root, known = best
        if missing := [name for name in self.expected.environment_words if name not in known]:
            found = [folder.name for folder in visible_folders(root)]
            said = f"found the folders {first(found)}" if found else "found no folders"
            raise self.expected.refusal(root, f"no folder for the environment {first(missing)}; {said}.")
        return root, known

    def _named(self, folder: Path, names: Mapping[str, str]) -> tuple[dict[str, Path], list[str]]:
        """Folders below by the name they stand for, whatever their spelling; and the names of the others."""
        meant = {name_key(s): name for name in names for s in (name, *self.spellings.get(name, ()))}
        known: dict[str, Path] = {}
        strange = []
        for child in visible_folders(folder):
            name = meant.get(name_key(child.name))
            if name is None:
                strange.append(child.name)
            elif name in known:
                raise self.expected.refusal(folder, f"{known[name].name} and {child.name} both stand for {name}.")
            else:
                known[name] = child
        return known, strange


def tree_dataset(*, spellings: Mapping[str, Sequence[str]] | None = None, **fields: Any) -> Dataset:
    """A data set in folders `environment/class`, each environment held out in turn."""
    about = {name: fields[name] for name in Expected.__dataclass_fields__ if name in fields}
    tree = Tree(Expected(**about), spellings or {})
    return Dataset(**{"read": tree.read, "folds": leave_one_out_folds, **fields})


def as_words(names: str | Sequence[str], other: Mapping[str, str] | None = None) -> dict[str, str]:
    """Each name with its words: `to_words` unless given. Text stands for the names in it, between blanks."""
    names = names.split() if isinstance(names, str) else names
    return {name: (other or {}).get(name, to_words(name)) for name in names}


def name_key(name: str) -> str:
    """What is left of a folder's name when spelling does not count: "Real World" and "real_world" are the same."""
    return to_words(name).replace(" ", "")


def visible_folders(folder: Path) -> list[Path]:
    """The folders inside a folder, sorted, without hidden ones."""
    try:
        with os.scandir(folder) as entries:  # says what is a folder without looking at each of 100,000 images
            return sorted(folder / entry.name for entry in entries if entry.is_dir() and is_visible(entry.name))
    except OSError as error:
        raise DataError(f"{folder}: cannot be opened ({error.strerror or error}).") from error


def first(names: Sequence[str]) -> str:
    """The first few names of a list, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _folders_around(path: Path, depth: int) -> Iterator[Path]:
    """A folder and those below it, the nearest first."""
    level = [path]
    for _ in range(depth):
        yield from level
        level = [child for folder in level for child in visible_folders(folder)]


def _class_level(folder: Path) -> Path:
    """Office data sets put a folder "images" between an environment and its classes."""
    below = visible_folders(folder)
    return below[0] if len(below) == 1 and below[0].name == "images" else folder


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
