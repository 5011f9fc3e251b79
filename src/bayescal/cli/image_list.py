"""From what people type (files, folders, patterns, a list on stdin) to a list of image files."""

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Iterator

from bayescal.data.archives import split_member
from bayescal.data.file_tree import (
    FOREIGN_SUFFIXES,
    IMAGE_SUFFIXES,
    expand_braces,
    is_tree,
    is_utf8,
    list_tree,
)
from bayescal.data.remote import is_url
from bayescal.errors import BayescalWarning, DataError


def list_images(arguments: Iterable[str]) -> list[str]:
    """Every image that is meant, in order: files, folders, archives, URLs.

    Files that do not exist stay in the list: each is reported by name.
    """
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
    if is_tree(path):
        return _images_below(path)
    if is_url(path) or os.path.lexists(path) or split_member(path):  # a file may well be called "cat[1].jpg"
        return [path] if is_utf8(path) else _left_out([path])
    if not glob.has_magic(path):
        return expand_braces(path)
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        _warn(f"no file matches {argument}")
    return [image for match in found for image in _expand(match)]


def _images_below(folder: str) -> list[str]:
    """The pictures there, those included that cannot be read: each gets an answer. Of other files there is a note."""
    tree = list_tree(folder)
    for text in tree.notes(folder, foreign_too=False):
        _warn(text)
    images = tree.chosen(IMAGE_SUFFIXES | FOREIGN_SUFFIXES).files
    if not images:
        _warn(f"there are no images in {folder}")
    return images


def _left_out(paths: list[str]) -> list[str]:
    for path in paths:
        _warn(f"left out: {path.encode(errors='backslashreplace').decode()} (its name is not UTF-8)")
    return []


def check_any(images: list[str], arguments: Iterable[str]) -> None:
    if not images:
        raise DataError(f"no images found in {', '.join(arguments)}. Name image files, folders or patterns")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
