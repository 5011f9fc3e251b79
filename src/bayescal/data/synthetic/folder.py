"""Writing a made data set: whole or not at all, and never over something else."""

import contextlib
import csv
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescal.data.manifest import Manifest, read_manifest
from bayescal.errors import DataError
from bayescal.util.atomic import folder_beside
from bayescal.util.jsonable import loads
from bayescal.util.regular import read_file

TABLE = "manifest.csv"


@dataclass(frozen=True)
class Recipe:
    """What a folder holds: a data set, and the version, seed and options that it was made with."""

    title: str  # "ColoredMNIST", for messages
    mark: str  # the file inside the folder that says so
    made: Mapping[str, Any]  # plain JSON values

    def text(self) -> str:
        """What to write into the mark."""
        return json.dumps(dict(self.made)) + "\n"


def make_once(folder: str | os.PathLike[str], recipe: Recipe, write: Callable[[Path], None]) -> Manifest:
    """Let `write` fill a new folder, and read it; a folder that already holds the same is read and left as it is.

    `write` is given a folder that does not exist yet, and has to write the table into it too.
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        return _read_finished(target, recipe)
    try:
        with folder_beside(target) as temporary:
            made = temporary / target.name  # inside it, so that the new folder gets ordinary permissions
            write(made)
            (made / recipe.mark).write_text(recipe.text(), encoding="utf-8")
            _move_into_place(made, target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror or error}).") from error
    return _read_finished(target, recipe)


def write_table(folder: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write the manifest of a made folder, with what was done to each image in columns of its own."""
    with open(folder / TABLE, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _move_into_place(made: Path, target: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()  # it is empty, or this fails and nothing is lost
        os.rename(made, target)
    except OSError as error:
        # another process was quicker: what it wrote is the same
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(made)


def _read_finished(folder: Path, recipe: Recipe) -> Manifest:
    try:
        found = loads(read_file(folder / recipe.mark))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder}: exists and does not hold {recipe.title}. Choose a folder that is new or empty."
        ) from error
    if found != dict(recipe.made):
        raise DataError(
            f"{folder}: holds other {recipe.title} ({_listed(found)}; wanted {_listed(recipe.made)}). "
            "Choose another folder, or delete this one."
        )
    try:
        return read_manifest(folder / TABLE)
    except DataError as error:
        raise DataError(f"{folder}: is damaged. Delete it and make it again. {error}") from error


def _listed(made: Any) -> str:
    if not isinstance(made, Mapping):
        return str(made)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in made.items())
