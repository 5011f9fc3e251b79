"""Which environment unlabelled images may come from, by the folders that they lie in.

Only folders below what was named on the command line are asked, and its own last folder: those above it say where
somebody keeps data, and not what it is.
"""

import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bayescal.data.file_tree import expand_braces, is_tree
from bayescal.data.remote import join


def tops_of(listed: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Of every image, by argument, the folder that was named: of single files, the last that they have in common."""
    parts: list[tuple[str | None, int]] = []
    common: str | None = None
    for argument, images in listed:
        path = os.path.expanduser(argument)
        tree = argument != "-" and expand_braces(path) == [path] and is_tree(path)
        parts.append((_whole(path).rstrip("/") if tree else None, len(images)))
        for folder in () if tree else {_whole(image).rpartition("/")[0] for image in images}:
            common = folder if common is None else _common(common, folder)
    return [(common or "") if top is None else top for top, count in parts for _ in range(count)]


def environments_of(images: Sequence[str], tops: Sequence[str], known: set[str]) -> list[str]:
    """Of each image, the folder beside or below which an environment of the model lies; "" where none does."""
    inside = [_whole(image)[len(top) + 1 :].split("/")[:-1] for image, top in zip(images, tops, strict=True)]
    levels: dict[str, int] = {}
    for folders, top in zip(inside, tops, strict=True):
        found = next((level for level, name in enumerate(folders) if name in known), None)
        if found is not None:
            levels[top] = min(found, levels.get(top, found))
    named = _named_environments(set(tops) - levels.keys(), known)

    def environment(folders: list[str], top: str) -> str:
        level = levels.get(top)
        if level is None:
            return named.get(top, "")
        return sys.intern(folders[level]) if len(folders) > level else ""

    return [environment(folders, top) for folders, top in zip(inside, tops, strict=True)]


def _named_environments(tops: set[str], known: set[str]) -> Mapping[str, str]:
    """new/photo and new/street, both named themselves: environments where one of them is one of the model's."""
    beside: dict[str, dict[str, str]] = defaultdict(dict)
    for top in tops:
        folder, _, name = top.rpartition("/")
        beside[folder][top] = name
    return {top: name for own in beside.values() if known & set(own.values()) for top, name in own.items()}


def _common(one: str, other: str) -> str:
    """The folder that both are in or are."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.split("/"), other.split("/"), strict=False))
    return "/".join(name for name, _ in same)


def _whole(path: str) -> str:
    return join(os.getcwd(), path)
