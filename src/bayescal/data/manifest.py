"""The list of images that everything starts from: where each is, its class, its environment, its split."""

import csv
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bayescal.data.file_tree import is_tree, suffix_of
from bayescal.data.layout import EXPECTED, Layout
from bayescal.data.manifest_files import TABLES, Images, read_table, read_tree
from bayescal.data.names import choose_words
from bayescal.data.remote import is_url
from bayescal.data.tables import parse_columns
from bayescal.errors import BayescalWarning, DataError
from bayescal.util.atomic import replacing

SPLITS = ("", "train", "val", "test")
TABLE = "manifest.csv"  # a folder that holds this list is read by it: it may know more than the folders, such as splits


class ManifestRow(NamedTuple):
    """One image with its names written out."""

    path: str
    class_name: str
    environment: str
    split: str


@dataclass(frozen=True, eq=False)
class Manifest:
    """N images: columns of length N, and the tables that their ids point into.

    Made by `read_manifest` from a folder or file, or by `Manifest.from_columns` from one value per image.

    Parameters
    ----------
    paths : tuple of str
        Where the images are.
    class_ids, environment_ids : ndarray
        (N,), indices into the names.
    splits : ndarray
        (N,), "train", "val", "test", or "" where the split is still to be drawn.
    classes, environments : tuple of str
        The names as the user wrote them, sorted.
    class_words, environment_words : tuple of str
        What the text tower is shown for them, in the same order.
    understood : str
        How they were read, for people: "layout environment/class/image: …".

    Examples
    --------
    >>> from bayescal import Manifest
    >>> manifest = Manifest.from_columns(
    ...     ["a.jpg", "b.jpg", "c.jpg"], ["dog", "house", "dog"], ["photo", "photo", "art_painting"]
    ... )
    >>> manifest.environment_words
    ('art painting', 'photo')
    >>> manifest.summary()
    {'dog': {'art_painting': 1, 'photo': 1}, 'house': {'art_painting': 0, 'photo': 1}}
    >>> len(manifest.select(manifest.class_ids == manifest.classes.index("dog")))
    2
    """

    paths: tuple[str, ...]
    class_ids: np.ndarray  # (N,) int64
    environment_ids: np.ndarray  # (N,) int64
    splits: np.ndarray  # (N,) "", "train", "val" or "test"
    classes: tuple[str, ...]
    environments: tuple[str, ...]
    class_words: tuple[str, ...]
    environment_words: tuple[str, ...]
    understood: str = ""

    def __post_init__(self) -> None:
        columns = {
            "class_ids": np.array(self.class_ids, dtype=np.int64),
            "environment_ids": np.array(self.environment_ids, dtype=np.int64),
            "splits": np.array(self.splits, dtype=np.str_),
        }
        for name, column in columns.items():
            if column.shape != (len(self.paths),):
                raise DataError(f"Manifest: {name} has shape {column.shape}, for {len(self.paths)} paths.")
            column.flags.writeable = False  # shared between selections
            object.__setattr__(self, name, column)
        if unknown := set(self.splits.tolist()) - set(SPLITS):
            raise DataError(f"Manifest: unknown split {min(unknown)!r}; use train, val, test or nothing.")
        for ids, names, words in (
            (self.class_ids, self.classes, self.class_words),
            (self.environment_ids, self.environments, self.environment_words),
        ):
            if len(names) != len(words) or (ids.size and not (ids.min() >= 0 and ids.max() < len(names))):
                raise DataError("Manifest: ids, names and words do not fit together.")

    @classmethod
    def from_columns(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        classes: Sequence[str],
        environments: Sequence[str],
        splits: Sequence[str] | None = None,
        *,
        class_words: Mapping[str, str] | None = None,
        environment_words: Mapping[str, str] | None = None,
        understood: str = "",
    ) -> "Manifest":
        """Build a manifest from one value per image, with names checked and sorted into tables."""
        class_table, environment_table = tuple(sorted(set(classes))), tuple(sorted(set(environments)))
        class_index = {name: index for index, name in enumerate(class_table)}
        environment_index = {name: index for index, name in enumerate(environment_table)}
        return cls(
            paths=tuple(os.fspath(path) for path in paths),
            class_ids=np.array([class_index[name] for name in classes], dtype=np.int64),
            environment_ids=np.array([environment_index[name] for name in environments], dtype=np.int64),
            splits=np.array([""] * len(paths) if splits is None else splits, dtype=np.str_),
            classes=class_table,
            environments=environment_table,
            class_words=choose_words(class_table, class_words, "class"),
            environment_words=choose_words(environment_table, environment_words, "environment"),
            understood=understood,
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Manifest):
            return NotImplemented
        return (
            (self.paths, self.classes, self.environments) == (other.paths, other.classes, other.environments)
            and self.class_words == other.class_words
            and self.environment_words == other.environment_words
            and np.array_equal(self.class_ids, other.class_ids)
            and np.array_equal(self.environment_ids, other.environment_ids)
            and np.array_equal(self.splits, other.splits)
        )

    def rows(self) -> Iterator[ManifestRow]:
        """Go through the images with their names written out."""
        columns = zip(self.paths, self.class_ids, self.environment_ids, self.splits, strict=True)
        for path, class_id, environment_id, split in columns:
            yield ManifestRow(path, self.classes[class_id], self.environments[environment_id], str(split))

    def select(self, mask_or_indices: ArrayLike) -> "Manifest":
        """Keep some images, by mask or by index; the tables of names stay, so ids keep their meaning."""
        chosen = np.asarray(mask_or_indices)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise DataError(f"A mask for {len(self)} images must have that length; found {chosen.shape}.")
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        return replace(
            self,
            paths=tuple(self.paths[index] for index in chosen),
            class_ids=self.class_ids[chosen],
            environment_ids=self.environment_ids[chosen],
            splits=self.splits[chosen],
        )

    def with_words(
        self, classes: Mapping[str, str] | None = None, environments: Mapping[str, str] | None = None
    ) -> "Manifest":
        """Show the text tower other words for some names; the rest keep theirs."""
        class_words = dict(zip(self.classes, self.class_words, strict=True)) | dict(classes or {})
        environment_words = dict(zip(self.environments, self.environment_words, strict=True))
        environment_words |= dict(environments or {})
        return replace(
            self,
            class_words=choose_words(self.classes, class_words, "class"),
            environment_words=choose_words(self.environments, environment_words, "environment"),
        )

    def counts(self) -> np.ndarray:
        """Count the images of each class in each environment, as (classes, environments)."""
        table = np.zeros((len(self.classes), len(self.environments)), dtype=np.int64)
        np.add.at(table, (self.class_ids, self.environment_ids), 1)
        return table

    def summary(self) -> dict[str, dict[str, int]]:
        """Count the images of each class in each environment, by name."""
        return {
            name: dict(zip(self.environments, row.tolist(), strict=True))
            for name, row in zip(self.classes, self.counts(), strict=True)
        }

    def missing_cells(self) -> list[tuple[str, str]]:
        """List the (class, environment) pairs without an image, among the environments that have any."""
        counts = self.counts()
        present = counts.sum(axis=0) > 0
        return [(self.classes[c], self.environments[e]) for c, e in np.argwhere((counts == 0) & present)]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV that `read_manifest` reads; paths below its folder are relative, so both can move."""
        target = Path(path).absolute()
        try:
            with replacing(target) as draft, open(draft, "x", encoding="utf-8", newline="") as stream:
                writer = csv.writer(stream, lineterminator="\n")
                writer.writerow(["path", "class", "environment", "split"])
                for row in self.rows():
                    writer.writerow([_relative_to(row.path, target.parent), *row[1:]])
        except OSError as error:
            raise DataError(f"{target}: cannot be written ({error.strerror or error}).") from error
        except UnicodeEncodeError as error:
            raise DataError(f"{error.object!r} is not a valid file name. Rename it.") from error


def read_manifest(
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    class_from_name: bool = False,
    columns: str | Mapping[str, str] | None = None,
    environment: str | None = None,
    class_words: Mapping[str, str] | None = None,
    environment_words: Mapping[str, str] | None = None,
) -> Manifest:
    """Read which images there are, with their classes, environments and splits.

    Parameters
    ----------
    path : path
        A folder, an archive (.zip, .tar, WebDataset shards such as "shard-{000..009}.tar") or a URL (s3://…) of images
        in folders ENVIRONMENT/CLASS, CLASS, SPLIT/CLASS …; or a list of images with path, class, environment, split:
        CSV, XLSX or JSON (docs/data-layout.md).
    layout : str, optional
        What the folders mean, from the top: "class", "split/class", "environment/*/class" …; None: found out.
    class_from_name : bool
        The class is in the files' names, "airport_01.jpg".
    columns, environment : mapping of str to str, and str, optional
        What the columns of a list are called, {"class": "label"}; the environment of images that come without one.
    class_words, environment_words : mapping of str to str, optional
        What to call some classes or environments; these win over words in the file.

    Returns
    -------
    Manifest
        Its `understood` says how the images were read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from bayescal import read_manifest
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("photo/dog", "photo/house", "sketch/dog"):
    ...     (folder / name).mkdir(parents=True)
    ...     Image.new("RGB", (8, 8)).save(folder / name / "1.png")
    >>> manifest = read_manifest(folder, class_words={"dog": "small dog"})
    >>> manifest.classes, manifest.environments, manifest.class_words
    (('dog', 'house'), ('photo', 'sketch'), ('small dog', 'house'))
    >>> read_manifest(folder, layout="class").classes
    ('photo', 'sketch')
    """
    images = _read(os.path.expanduser(os.fspath(path)), layout, class_from_name, parse_columns(columns), environment)
    images = _without_repetitions(images, path)
    return Manifest.from_columns(
        images.paths,
        images.classes,
        images.environments,
        images.splits,
        class_words={**images.class_words, **(class_words or {})},
        environment_words={**images.environment_words, **(environment_words or {})},
        understood=images.said,
    )


@dataclass(frozen=True)
class Reading:
    """How images are to be read where that is not found out: what the options --layout … of a command say.

    Parameters
    ----------
    layout, class_from_name, columns, environment : as `read_manifest` takes them.
    """

    layout: str | None = None
    class_from_name: bool = False
    columns: str | None = None
    environment: str | None = None

    def read(
        self,
        path: str | os.PathLike[str],
        class_words: Mapping[str, str] | None = None,
        environment_words: Mapping[str, str] | None = None,
    ) -> Manifest:
        """The images, read in this way."""
        return read_manifest(
            path,
            layout=self.layout,
            class_from_name=self.class_from_name,
            columns=self.columns,
            environment=self.environment,
            class_words=class_words,
            environment_words=environment_words,
        )

    @property
    def options(self) -> list[str]:
        """As they are typed."""
        return [
            *(["--layout", self.layout] if self.layout else []),
            *(["--class-from-name"] if self.class_from_name else []),
            *(["--columns", self.columns] if self.columns else []),
        ]


FOUND_OUT = Reading()


def _read(
    path: str, layout: str | None, class_from_name: bool, columns: Mapping[str, str], environment: str | None
) -> Images:
    parsed = None if layout is None else Layout.parse(layout, class_from_name)
    if is_tree(path):
        table = os.path.join(path, TABLE)
        if layout is None and not class_from_name and os.path.isfile(table):
            return read_table(table, columns, environment)
        return read_tree(path, parsed, class_from_name, columns, environment)
    suffix = suffix_of(path)
    if not is_url(path):
        if not os.path.lexists(path):
            hint = " Several archives are named as a range: shard-{000..009}.tar." if "*" in path else ""
            raise DataError(
                f"{path}: there is no such folder or file.{hint}{EXPECTED}\n    or a list: CSV, XLSX or JSON."
            )
        if not os.path.isfile(path):  # a named pipe would block for ever
            raise DataError(f"{path}: is neither a folder nor a file that can be read.")
    if suffix not in TABLES:
        if is_url(path) and not suffix:
            raise DataError(f"{path}: nothing lies there, or nothing that may be listed.{EXPECTED}")
        raise DataError(
            f"{path}: expected a folder, an archive (.zip, .tar), or a file that ends in .csv, .xlsx or .json."
        )
    if layout is not None or class_from_name:
        raise DataError(f"{path}: is a list, so a layout of folders means nothing. Use --columns for its columns.")
    return read_table(path, columns, environment)


def _without_repetitions(images: Images, path: str | os.PathLike[str]) -> Images:
    first: dict[str, int] = {}
    for i, name in enumerate(images.paths):
        earlier = first.setdefault(name, i)
        columns = (images.classes, images.environments, images.splits)
        if earlier != i and any(column[earlier] != column[i] for column in columns):
            raise DataError(
                f"{path}: {name} is listed twice with different labels: "
                f"{images.label(earlier)} and {images.label(i)}. Keep one of them."
            )
    if len(first) == len(images.paths):
        return images
    warnings.warn(
        f"{path}: {len(images.paths) - len(first)} images were listed more than once and are used once.",
        BayescalWarning,
        stacklevel=3,
    )
    kept = list(first.values())
    columns = (
        [column[i] for i in kept] for column in (images.paths, images.classes, images.environments, images.splits)
    )
    return Images(
        *columns,
        said=images.said,
        class_words=images.class_words,
        environment_words=images.environment_words,
    )


def _relative_to(path: str, folder: Path) -> str:
    if is_url(path):
        return path
    image = Path(os.path.abspath(path))
    # as_posix: a manifest made on Windows then reads everywhere
    return image.relative_to(folder).as_posix() if image.is_relative_to(folder) else str(image)
