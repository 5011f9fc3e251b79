"""Reading folders, archives, lists and shards into columns: path, class, environment and split of every image."""

import os
import sys
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayescal.data.archives import is_archive_name, members, split_member
from bayescal.data.file_tree import (
    FOREIGN_SUFFIXES,
    IMAGE_SUFFIXES,
    FileTree,
    is_visible,
    list_tree,
    suffix_of,
)
from bayescal.data.layout import (
    EXPECTED,
    GENERIC,
    ONLY_ENVIRONMENT,
    Labels,
    Layout,
    classes_in_names,
    find_layout,
    read_labels,
    unread_splits_in,
)
from bayescal.data.remote import is_url, join
from bayescal.data.split_names import split_in, split_of
from bayescal.data.tables import COLUMNS, Entry, Table, read_csv, read_json, read_xlsx
from bayescal.data.webdataset import Sample, find_samples, read_samples, samples_without_image
from bayescal.errors import BayescalWarning, DataError

_SHOWN = 5
TABLES: dict[str, Callable[[str, Mapping[str, str]], Table]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".txt": read_csv,
    ".json": read_json,
    ".xlsx": read_xlsx,
    ".xlsm": read_xlsx,
}


@dataclass
class Images:
    """What a reader found, in columns: a million images are a million of each. `said`: how they were understood."""

    paths: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # the same few objects many times
    environments: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    said: str = ""
    counted: str = "image"  # what the numbers count
    numbers: "array[int] | None" = None  # where each is listed, for messages
    class_words: Mapping[str, str] = field(default_factory=dict)
    environment_words: Mapping[str, str] = field(default_factory=dict)

    def label(self, i: int) -> str:
        """An image's label, and where it is listed, for messages."""
        where = self.paths[i] if self.numbers is None else f"{self.counted} {self.numbers[i]}"
        return f"{' / '.join(filter(None, (self.classes[i], self.environments[i], self.splits[i])))} ({where})"


def read_tree(
    root: str, layout: Layout | None, class_from_name: bool, columns: Mapping[str, str], environment: str | None = None
) -> Images:
    """The images in a folder, an archive or below a URL, by what their folders mean; or the samples of shards.

    `environment` is that of images that come without one.
    """
    tree = list_tree(root)
    if samples := find_samples(tree):
        return _from_samples(root, tree, samples, columns, environment)
    images = tree.chosen(IMAGE_SUFFIXES)
    if not images.files:
        _refuse_empty(root, tree)
    if layout is None and not class_from_name:
        _refuse_unread_lists(root, tree, images.names)
    for note in tree.notes(root):
        _warn(note)
    found = layout or find_layout(root, images.names, class_from_name)
    labels = read_labels(root, images.names, found)
    _warn_about_empty_folders(root, tree, images.names, len(found.levels))
    if layout is not None and (splits := unread_splits_in(images.names, layout)):
        _warn(
            f"{root}: {_first(splits)} look like splits, and mean nothing in the layout {layout}: images in them are "
            "taken for training images like all others. Name that level split."
        )
    _warn_about_split_environments(root, found, labels)
    if layout is None:
        _warn_about_apart(root, found, labels)
        if not class_from_name and "environment" not in found.levels and (said := classes_in_names(images.names)):
            _warn(
                f"{root}: the files' names say {_first(said)} in every folder. If these are the classes, say "
                "--class-from-name (class_from_name=True)."
            )
    environments = labels.environments
    if environment and "environment" not in found.levels:
        environments = [environment] * len(environments)
    return Images(
        [file if is_url(file) else os.path.abspath(file) for file in images.files],
        *(list(map(sys.intern, column)) for column in (labels.classes, environments, labels.splits)),
        said=f"layout {found}: {labels.summary()}",
    )


def _warn_about_split_environments(root: str, layout: Layout, labels: Labels) -> None:
    """Where `--layout` says so: found out, such folders are splits."""
    splits = sorted(name for name in set(labels.environments) if split_of(name))
    if len({split_of(name) for name in splits}) > 1:
        _warn(
            f"{root}: {_first(splits)} look like splits, and are environments in the layout {layout}: images in them "
            "are taken for training images like all others. Name that level split."
        )


def _refuse_empty(root: str, tree: FileTree) -> None:
    kinds = sorted({suffix_of(name) for name in tree.names} & FOREIGN_SUFFIXES)
    found = f"{len(tree.names)} other files" if tree.names else "nothing"
    hint = f" Convert {', '.join(kinds)} to JPEG or PNG first." if kinds else ""
    if archives := sorted(filter(is_archive_name, tree.names)):
        hint += (
            f" Archives are named one by one, {os.path.join(root, archives[0])}, or as a range: shard-{{000..009}}.tar."
        )
    if tree.left_out:
        hint += f" Left out: {_first([f'{name} ({why})' for name, why in tree.left_out])}."
    raise DataError(f"{root}: found {found} and no images.{hint}{EXPECTED}")


def _refuse_unread_lists(root: str, tree: FileTree, names: Sequence[str]) -> None:
    """No folder says what the images show, and a list beside them may."""
    lists = [name for name in tree.names if "/" not in name and suffix_of(name) in set(TABLES) - {".txt"}]
    folders = {part for name in names for part in name.split("/")[:-1]}
    if lists and all(split_of(folder) or folder.strip().lower() in GENERIC for folder in folders):
        raise DataError(
            f"{root}: no folder says what the {len(names):,} images show. {_first(lists)} beside them may: name the "
            f"list instead of the folder, {root.rstrip('/')}/{lists[0]}. If the class is in the files' names, say "
            "--class-from-name."
        )


def _warn_about_empty_folders(root: str, tree: FileTree, names: Sequence[str], depth: int) -> None:
    used: set[str] = set()
    for folder in {name.rpartition("/")[0] for name in names}:
        parts = folder.split("/")
        used.update("/".join(parts[: n + 1]) for n in range(len(parts)))
    parents = {folder.rpartition("/")[0] for folder in tree.folders}
    empty = [
        folder
        for folder in sorted(tree.folders)
        if folder not in used and (own := folder.count("/") + 1) <= depth and (own == depth or folder not in parents)
    ]
    if empty:
        _warn(f"{root}: skipped {len(empty)} folders without images: {_first(empty)}.")


def _warn_about_apart(root: str, layout: Layout, labels: Labels) -> None:
    """Where no class occurs in two environments, the first folders may be classes."""
    homes: dict[str, set[str]] = {}
    for name, environment in set(zip(labels.classes, labels.environments, strict=True)):
        homes.setdefault(name, set()).add(environment)
    environments = set(labels.environments)
    if len(environments) > 1 and len(homes) > len(environments) and all(len(own) == 1 for own in homes.values()):
        _warn(
            f"{root}: read as {layout}, no class occurs in two environments. If {_first(sorted(environments))} are the "
            "classes, say --layout class (layout='class')."
        )


def _from_samples(
    root: str, tree: FileTree, samples: Sequence[Sample], columns: Mapping[str, str], environment: str | None
) -> Images:
    for note in tree.notes(root)[: 1 if tree.left_out else 0]:
        _warn(note)
    if without := samples_without_image(tree):
        _warn(
            f"{root}: skipped {len(without)} of {len(samples) + len(without)} samples, which have no image that can be "
            f"read: {_first(without)}. Convert pictures of other kinds to JPEG or PNG."
        )
    table = read_samples(root, samples, columns)
    return _checked(root, table, lambda path: path if is_url(path) else os.path.abspath(path), "", environment)


def read_table(file: str, columns: Mapping[str, str], environment: str | None = None) -> Images:
    """A list of images; their paths are looked up from where it lies. `environment`: of those that come without one."""
    table = TABLES[suffix_of(file)](file, columns)
    for note in table.notes:
        _warn(note)
    folder = file.rpartition("/")[0] if is_url(file) else os.path.dirname(os.path.abspath(file))
    lookup = _Lookup(folder)
    images = _checked(file, table, lookup, folder, environment)
    if lookup.below:
        _warn(f"{file}: paths are looked up in {os.path.basename(lookup.below)}/ too, where the files are.")
    return images


class _Lookup:
    """Files by their names in a list: from its folder, or all of them from the one folder in it that has the first."""

    def __init__(self, folder: str):
        self.folder = folder
        self.below: str | None = None
        self._looked = False

    def __call__(self, text: str) -> str | None:
        if (found := _locate(text, self.folder)) or is_url(self.folder):
            return found
        if not self._looked:
            self._looked = True
            with os.scandir(self.folder) as scan:
                folders = [entry.path for entry in scan if entry.is_dir() and is_visible(entry.name)]
            having = [folder for folder in folders if _locate(text, folder)]
            self.below = having[0] if len(having) == 1 else None
        return _locate(text, self.below) if self.below else None


def _checked(
    file: str, table: Table, locate: Callable[[str], str | None], folder: str, otherwise: str | None
) -> Images:
    """Check entries one by one; where files are missing, name them together."""
    images = Images(said=table.said, counted=table.counted, numbers=array("q"))
    images.class_words, images.environment_words = table.class_words, table.environment_words
    unknown: list[str] = []
    n_unknown = without = 0
    with_environment: str | None = None  # where the first environment is named
    for entry in table.entries:
        where = f"{table.counted} {entry[0]}"
        path, class_name, environment, split = _values(file, where, entry)
        environment = environment or otherwise or ""
        located = locate(path)
        if located is None:
            n_unknown += 1
            unknown += [path] if len(unknown) < _SHOWN else []
            continue
        if not class_name:
            todo = f"fill it in, or delete this {table.counted}"
            raise DataError(f"{file}, {where}: the class is empty. Every image needs one: {todo}.")
        with_environment = with_environment or (where if environment else None)
        if not environment:
            without = without or entry[0]
        images.paths.append(located)
        images.classes.append(class_name)
        images.environments.append(environment or ONLY_ENVIRONMENT)
        images.splits.append(split)
        assert images.numbers is not None
        images.numbers.append(entry[0])
    if with_environment and without:
        raise DataError(
            f"{file}, {table.counted} {without}: the environment is empty, while other images have one. "
            "Fill it in, or leave the whole column out; `bayescal add` fills it with --environment NAME."
        )
    total = len(images.paths) + n_unknown
    if not total:
        raise DataError(f"{file}: lists no images. Expected one line or entry per image: {COLUMNS}.")
    if n_unknown:
        more = f" and {n_unknown - _SHOWN} more" if n_unknown > _SHOWN else ""
        raise DataError(
            f"{file}: {n_unknown} of {total} files do not exist: {', '.join(unknown)}{more}. "
            f"Paths are looked up from {folder}.{_same_end(unknown[0], folder)}"
        )
    return images


def _same_end(text: str, folder: str) -> str:
    """A hint where the end of a path, made on another computer, is there."""
    if is_url(folder):
        return ""
    parts = text.strip().replace("\\", "/").split("/")
    ends = ("/".join(parts[i:]) for i in range(1, len(parts)))
    found = next((end for end in ends if _locate(end, folder)), None)
    return f" {found} is there: cut what stands before it." if found else ""


def _values(file: str, where: str, entry: Entry) -> tuple[str, str, str, str]:
    """Path, class, environment and split of an entry, as text."""
    path, *others = entry[1]
    if not isinstance(path, str) or not path.strip():
        raise DataError(f"{file}, {where}: the path is empty.")
    names = ("class", "environment", "split")
    class_name, environment, split = (_cell(file, where, n, v) for n, v in zip(names, others, strict=True))
    known = split_in(split) or ""  # "Training", "valid" … as folders may be called
    if split and not known:
        raise DataError(f"{file}, {where}: unknown split {split!r}; use train, val, test or nothing.")
    return path, class_name, environment, known


def _cell(file: str, where: str, key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):  # 7 is a good class name; true is not
        raise DataError(f"{file}, {where}: {key} must be text; found {value!r}.")
    return sys.intern(str(value).strip())  # few names, many images


def _locate(text: str, folder: str) -> str | None:
    """Find the file that is meant: as written, else without stray blanks, else with Windows separators.

    What lies behind a URL is not asked for one by one; if it is missing, reading it says so.
    """
    if is_url(path := join(folder, text.strip().replace("\\", "/"))):
        return path
    for candidate in (text, text.strip(), text.strip().replace("\\", "/")):
        path = join(folder, candidate)
        if os.path.isfile(path):
            return path
        if (member := split_member(path)) and member[1] in members(member[0]):
            return path
    return None


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
