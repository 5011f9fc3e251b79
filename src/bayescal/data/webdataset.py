"""WebDataset shards: .tar files in which `key.jpg` lies beside `key.cls` or `key.json`, which say what it is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayescal.data.archives import read_member, split_member
from bayescal.data.file_tree import IMAGE_SUFFIXES, FileTree
from bayescal.data.tables import FIELDS, Entry, Table
from bayescal.errors import DataError
from bayescal.util.harmless import one_line

_USUAL = {"class": ("class", "label", "cls"), "environment": ("environment", "domain"), "split": ("split",)}


@dataclass
class Sample:
    """An image and what stands beside it, by whole names."""

    image: str
    cls: str | None = None
    json: str | None = None


def find_samples(tree: FileTree) -> list[Sample]:
    """The samples of shards; nothing where the files are no shards."""
    found = []
    for files in _parts(tree).values():
        image = _image_in(files)
        if image is not None:
            found.append(Sample(image, files.get("cls"), files.get("json")))
    return found if any(sample.cls or sample.json for sample in found) else []


def samples_without_image(tree: FileTree) -> list[str]:
    """Samples that have a class and no image of a kind that is read: "00018 (cls, jxl)"."""
    return [
        f"{one_line(key.rpartition('/')[2])} ({', '.join(sorted(files))})"
        for key, files in _parts(tree).items()
        if _image_in(files) is None and ("cls" in files or "json" in files)
    ]


def _image_in(files: Mapping[str, str]) -> str | None:
    return next((file for ending, file in files.items() if f".{ending}" in IMAGE_SUFFIXES), None)


def _parts(tree: FileTree) -> dict[str, dict[str, str]]:
    """The files of each key by their endings; nothing where the files are no shards."""
    if not tree.files or not any(name.endswith((".cls", ".json")) for name in tree.names):
        return {}
    parts: dict[str, dict[str, str]] = {}
    for file in tree.files:
        if (member := split_member(file)) is None or ".tar" not in member[0].lower():
            return {}
        folder, _, name = file.rpartition("/")
        key, _, ending = name.partition(".")
        parts.setdefault(f"{folder}/{key}", {})[ending.lower()] = file
    return parts


def read_samples(root: str, samples: Sequence[Sample], columns: Mapping[str, str]) -> Table:
    """Class, environment and split of samples; `columns` names the fields of their JSON."""

    def entries() -> Iterator[Entry]:
        for number, sample in enumerate(samples, start=1):
            about = _about(sample.json) if sample.json else {}
            values = [_field(about, name, columns) for name in FIELDS[1:]]
            if values[0] is None and sample.cls:
                values[0] = _content(sample.cls).decode("utf-8", "replace").strip()
            yield number, [sample.image, *values]

    named = ", ".join(f"{ours} from {theirs}" for ours, theirs in columns.items())
    said = f"WebDataset shards, {len(samples):,} samples: key.cls or key.json beside each image"
    return Table(entries(), "sample", f"{said} ({named})" if named else said, {}, {})


def _field(about: Mapping[str, Any], name: str, columns: Mapping[str, str]) -> Any:
    usual = (columns[name],) if name in columns else _USUAL[name]
    return next((about[key] for key in usual if about.get(key) is not None), None)


def _about(file: str) -> dict[str, Any]:
    try:
        about = json.loads(_content(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not JSON ({error}).") from error
    if not isinstance(about, dict):
        raise DataError(f'{file}: expected an object such as {{"class": "dog", "environment": "photo"}}.')
    return about


def _content(file: str) -> bytes:
    member = split_member(file)
    assert member is not None, f"{file} lies in an archive"
    return read_member(*member)
