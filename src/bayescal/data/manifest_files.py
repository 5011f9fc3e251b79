"""Reading a folder, a CSV or a JSON file into rows of path, class, environment and split."""

import csv
import io
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bayescal.data.images import FOREIGN_SUFFIXES, IMAGE_SUFFIXES, is_visible, walk_files
from bayescal.errors import BayescalWarning, DataError

ONLY_ENVIRONMENT = "all"  # the environment of images that come without one
LAYOUT = """
    my_images/
        photo/              an environment: where or how the images were made
            dog/            a class
                1.jpg
            horse/
                2.jpg
        sketch/
            dog/
                3.jpg
    or, when there is one environment only:
    my_images/
        dog/
            1.jpg
        horse/
            2.jpg"""
COLUMNS = "path, class, environment (may be left out), split (may be left out)"
_DELIMITERS = (",", ";", "\t")
_SHOWN = 5


class Row(NamedTuple):
    """One image as the user described it; `where` says on which line, for messages."""

    path: str
    class_name: str
    environment: str
    split: str
    where: str


@dataclass(frozen=True)
class Source:
    """What a reader found: the rows and, from JSON, the words to show for names."""

    rows: list[Row]
    class_words: dict[str, str] = field(default_factory=dict)
    environment_words: dict[str, str] = field(default_factory=dict)


def read_folder(folder: Path) -> Source:
    """Read `environment/class/…/image`, or `class/image` as one environment."""
    files = list(walk_files(folder))
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    foreign = Counter(path.suffix.lower() for path in files if path.suffix.lower() in FOREIGN_SUFFIXES)
    if not images:
        found = f"{len(files)} other files" if files else "nothing"
        kinds = f" Convert {', '.join(foreign)} to JPEG or PNG first." if foreign else ""
        raise DataError(f"{folder}: found {found} and no images.{kinds} Expected:\n{LAYOUT}")
    if foreign:
        _warn(
            f"{folder}: skipped {foreign.total()} pictures of kinds that cannot be read "
            f"({', '.join(f'{kind}: {count}' for kind, count in foreign.items())}). "
            "Convert them to JPEG or PNG."
        )
    depth = _folder_depth(folder, images)
    rows = []
    for path in images:
        parts = path.relative_to(folder).parts
        environment = parts[0].strip() if depth == 3 else ONLY_ENVIRONMENT
        rows.append(Row(os.path.abspath(path), parts[depth - 2].strip(), environment, "", str(path)))
    _warn_about_empty_folders(folder, depth, images)
    return Source(rows)


def _folder_depth(folder: Path, images: Sequence[Path]) -> int:
    """Tell `class/image` (2) from `environment/class/…/image` (3); a mixture is refused."""
    examples: dict[int, Path] = {}
    for path in images:
        relative = path.relative_to(folder)
        examples.setdefault(min(len(relative.parts), 3), relative)
    if 1 in examples:
        raise DataError(
            f"{folder}: an image lies in a folder named after its class, but {examples[1]} does not. "
            f"Expected:\n{LAYOUT}"
        )
    if len(examples) == 2:
        raise DataError(
            f"{folder}: two layouts are mixed: {examples[2]} looks like class/image, "
            f"{examples[3]} like environment/class/image. Use one of them throughout. Expected:\n{LAYOUT}"
        )
    return next(iter(examples))


def _warn_about_empty_folders(folder: Path, depth: int, images: Sequence[Path]) -> None:
    parents = {path.relative_to(folder).parts[:2] for path in images}
    used = parents | {parts[:1] for parts in parents}
    empty = []
    for first in _visible_folders(folder):
        below = _visible_folders(first) if depth == 3 else []
        for candidate in below or [first]:
            if candidate.relative_to(folder).parts not in used:
                empty.append(str(candidate.relative_to(folder)))
    if empty:
        _warn(f"{folder}: skipped {len(empty)} folders without images: {_first(empty)}.")


def _visible_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path.name))


def read_csv(file: Path) -> Source:
    """Read a table with a header, separated by commas, semicolons or tabs."""
    text = _read_text(file)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_find_delimiter(text), strict=True)
        header = [name.strip().lower() for name in next(reader, [])]
        _check_columns(file, header)
        entries = []
        for cells in reader:
            where = f"line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) > len(header):
                raise DataError(
                    f"{file}, {where}: {len(cells)} cells under {len(header)} columns. "
                    "Put cells that contain the separator in double quotes."
                )
            entries.append((where, dict(zip(header, cells, strict=False))))
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: not a valid table ({error}).") from error
    return Source(_to_rows(file, entries))


def _find_delimiter(text: str) -> str:
    """Pick the separator under which the header shows most of the columns that we know."""
    header = text.split("\n", 1)[0].lower()

    def known_columns(delimiter: str) -> tuple[int, int]:
        names = [name.strip().strip('"') for name in header.split(delimiter)]
        return sum(name in ("path", "class", "environment", "split") for name in names), len(names)

    return max(_DELIMITERS, key=known_columns)


def _check_columns(file: Path, header: list[str]) -> None:
    missing = [name for name in ("path", "class") if name not in header]
    if missing:
        found = ", ".join(name or "(empty)" for name in header) or "an empty first line"
        raise DataError(
            f"{file}: no column {' and no column '.join(missing)}. The first line must name the columns: "
            f"{COLUMNS}. Found: {found}."
        )
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise DataError(f"{file}: the column {twice[0]} occurs more than once. Remove one of them.")


def read_json(file: Path) -> Source:
    """Read a list of objects, or an object with "images" and the words to show for names."""
    text = _read_text(file)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg})."
        ) from error
    except RecursionError as error:
        raise DataError(f"{file}: not a manifest (nested too deeply).") from error
    images = content.get("images") if isinstance(content, dict) else content
    if not isinstance(images, list) or not all(isinstance(entry, dict) for entry in images):
        raise DataError(
            f'{file}: expected a list [{{"path": …, "class": …}}, …] or an object {{"images": [ … ]}}, '
            f"each image with: {COLUMNS}."
        )
    words = content if isinstance(content, dict) else {}
    for key in ("class_words", "environment_words"):
        if not isinstance(words.get(key, {}), dict):
            raise DataError(f'{file}: "{key}" must be an object, such as {{"raw name": "words to show"}}.')
    entries = [(f"image {number}", entry) for number, entry in enumerate(images, start=1)]
    for where, entry in entries:
        missing = [key for key in ("path", "class") if key not in entry]
        if missing:
            raise DataError(
                f"{file}, {where}: no {' and no '.join(missing)}. Expected: {COLUMNS}. "
                f"Found: {', '.join(map(str, entry)) or 'nothing'}."
            )
    return Source(_to_rows(file, entries), words.get("class_words", {}), words.get("environment_words", {}))


def _to_rows(file: Path, entries: Sequence[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Check entries from a file one by one; where files are missing, name them together."""
    if not entries:
        raise DataError(f"{file}: lists no images. Expected one line or entry per image: {COLUMNS}.")
    with_environment = any(_cell(file, where, entry, "environment") for where, entry in entries)
    rows, unknown = [], []
    for where, entry in entries:
        text = entry.get("path")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{file}, {where}: the path is empty.")
        path = _locate(text, file.parent)
        if path is None:
            unknown.append(text)
            continue
        class_name = _cell(file, where, entry, "class")
        if not class_name:
            raise DataError(f"{file}, {where}: the class is empty. Every image needs one.")
        environment = _cell(file, where, entry, "environment") if with_environment else ONLY_ENVIRONMENT
        if not environment:
            raise DataError(
                f"{file}, {where}: the environment is empty, while other images have one. "
                "Fill it in, or leave the whole column out."
            )
        split = _cell(file, where, entry, "split").lower()
        if split not in ("", "train", "val", "test"):
            raise DataError(f"{file}, {where}: unknown split {split!r}; use train, val, test or nothing.")
        rows.append(Row(path, class_name, environment, split, where))
    if unknown:
        raise DataError(
            f"{file}: {len(unknown)} of {len(entries)} files do not exist: {_first(unknown)}. "
            f"Paths are looked up from {file.parent.absolute()}."
        )
    return rows


def _cell(file: Path, where: str, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):  # 7 is a good class name; true is not
        raise DataError(f"{file}, {where}: {key} must be text; found {value!r}.")
    return sys.intern(str(value).strip())  # few names, many images


def _locate(text: str, folder: Path) -> str | None:
    """Find the file that is meant: as written, else without stray blanks, else with Windows separators."""
    for candidate in (text, text.strip(), text.strip().replace("\\", "/")):
        path = os.path.abspath(os.path.join(folder, candidate))
        if os.path.isfile(path):
            return path
    return None


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{file}: is not UTF-8 text (line {line}). Save it again as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be opened ({error.strerror or error}).") from error


def _first(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
