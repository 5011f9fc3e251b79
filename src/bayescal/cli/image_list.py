"""From what people type (files, folders, patterns, a list on stdin) to a list of image files."""

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from bayescal.data import find_images
from bayescal.errors import BayescalWarning, DataError


def list_images(arguments: Iterable[str]) -> list[str]:
    """Every image that is meant, in order. Files that do not exist stay in the list: each is reported by name."""
    return [path for argument in _with_stdin(arguments) for path in _expand(argument)]


def _with_stdin(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        if argument != "-":
            yield argument
            continue
        text = sys.stdin.read()
        # NUL-separated, as `find -print0` writes it, allows every file name there is
        names = text.split("\0") if "\0" in text else text.splitlines()
        yield from (name for name in names if name.strip())


def _expand(argument: str) -> list[str]:
    path = os.path.expanduser(argument)
    if os.path.isdir(path):
        return _images_below(path)
    if os.path.exists(path) or not glob.has_magic(path):  # a file may well be called "cat[1].jpg"
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        _warn(f"no file matches {argument}")
    return [image for match in found for image in (_images_below(match) if os.path.isdir(match) else [match])]


def _images_below(folder: str) -> list[str]:
    images = find_images(Path(folder))
    if not images:
        _warn(f"there are no images in the folder {folder}")
    return [str(image) for image in images]


def check_any(images: list[str], arguments: Iterable[str]) -> None:
    if not images:
        raise DataError(f"no images found in {', '.join(arguments)}. Name image files, folders or patterns")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
