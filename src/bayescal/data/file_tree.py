"""All files below a folder, in an archive or below a URL, by name; and what had to be left out, with the reason."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayescal.data.archives import is_archive_name, left_out_of, members, split_member, stem
from bayescal.data.remote import is_url, is_url_folder, list_below
from bayescal.errors import DataError
from bayescal.util.harmless import one_line

# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".avif",
    ".jp2", ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif", ".hif",
})
# Pictures that cannot be read, listed so that they are not left out in silence.
FOREIGN_SUFFIXES = frozenset({
    ".jxl", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".dcm", ".pdf",
})
# fmt: on
_IGNORED = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "__pycache__", "Thumbs.db", "desktop.ini"})
_SHOWN = 5
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_SHARDS = 100_000


@dataclass(frozen=True)
class FileTree:
    """Files below one or several roots, sorted folder by folder."""

    files: list[str]  # whole names, as `read_image` takes them
    names: list[str]  # the same, relative to their root, with "/"
    left_out: list[tuple[str, str]] = field(default_factory=list)  # files that cannot be used: name, reason
    folders: list[str] = field(default_factory=list)  # relative names of all folders that there are on a disk

    def chosen(self, suffixes: frozenset[str]) -> "FileTree":
        """The files with one of these suffixes."""
        kept = [i for i, name in enumerate(self.names) if suffix_of(name) in suffixes]
        return FileTree([self.files[i] for i in kept], [self.names[i] for i in kept], self.left_out, self.folders)

    def notes(self, where: str, foreign_too: bool = True) -> list[str]:
        """What was left out, with a count and the first names. `foreign_too`: also pictures of other kinds."""
        found = []
        if self.left_out:
            first = _first([f"{name} ({why})" for name, why in self.left_out])
            found.append(f"{where}: {_count(len(self.left_out), 'file')} left out: {first}.")
        foreign = self.chosen(FOREIGN_SUFFIXES).names if foreign_too else []
        if foreign:
            kinds = ", ".join(f"{kind}: {n}" for kind, n in Counter(map(suffix_of, foreign)).items())
            found.append(
                f"{where}: skipped {_count(len(foreign), 'picture')} of kinds that cannot be read ({kinds}): "
                f"{_first(foreign)}. Convert them to JPEG or PNG."
            )
        others = [name for name in self.names if suffix_of(name) not in IMAGE_SUFFIXES | FOREIGN_SUFFIXES]
        if others:
            verb = "is" if len(others) == 1 else "are"
            found.append(f"{where}: {_count(len(others), 'file')} {verb} no image: {_first(others)}.")
        return found


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def list_tree(root: str | os.PathLike[str]) -> FileTree:
    """All visible files below a folder, in an archive, below a URL; or in several, named with braces."""
    trees = [_tree(one) for one in expand_braces(os.fspath(root))]
    if len(trees) == 1:
        return trees[0]
    parts = [
        [item for tree in trees for item in getattr(tree, name)] for name in ("files", "names", "left_out", "folders")
    ]
    return FileTree(*parts)


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """List the images in a folder and all folders below it, sorted, without hidden and system files."""
    return [Path(file) for file in list_tree(folder).chosen(IMAGE_SUFFIXES).files]


def is_tree(root: str) -> bool:
    """Whether this names a folder, an archive or several, and no single file."""
    first = next(iter(expand_braces(root)))
    if _folder_in_archive(first):
        return True
    if is_archive_name(first) and not os.path.isdir(first):
        return os.path.exists(first) or is_url(first)
    return is_url_folder(first) if is_url(first) else os.path.isdir(first)


def _folder_in_archive(path: str) -> tuple[str, str] | None:
    """ "photos.zip/photo" → ("photos.zip", "photo/") where files in the archive lie below that name."""
    member = split_member(path)
    if member is None or os.path.exists(path):
        return None
    archive, name = member
    try:
        names = members(archive)
    except DataError:  # said where it is read
        return None
    start = f"{name.rstrip('/')}/"
    return (archive, start) if name not in names and any(other.startswith(start) for other in names) else None


def is_visible(name: str) -> bool:
    """Tell whether a file or folder is the user's own: not hidden, not made by an operating system."""
    return not name.startswith(".") and name not in _IGNORED


def expand_braces(text: str) -> list[str]:
    """ "shard-{00..02}.tar" → three names; "{a,b}.tar" → two. A name that exists as it stands is meant as it stands."""
    found = _BRACES.search(text)
    if found is None or os.path.exists(text):
        return [text]
    inside = found.group(1)
    if ends := _RANGE.fullmatch(inside):
        first, last = int(ends[1]), int(ends[2])
        if not 0 <= last - first < _MOST_SHARDS:
            raise DataError(f"{text}: {{{inside}}} must count upwards, by at most {_MOST_SHARDS:,}.")
        width = len(ends[1])
        options = [f"{number:0{width}}" for number in range(first, last + 1)]
    elif "," in inside:
        options = inside.split(",")
    else:
        return [text]
    before, after = text[: found.start()], text[found.end() :]
    return [name for option in options for name in expand_braces(f"{before}{option}{after}")]


def _tree(root: str) -> FileTree:
    if is_archive_name(root) and not os.path.isdir(root):
        return _listed(root, list(members(root)), left_out_of(root))
    if inside := _folder_in_archive(root):
        archive, start = inside
        others = [(name.removeprefix(start), why) for name, why in left_out_of(archive) if name.startswith(start)]
        names = [name.removeprefix(start) for name in members(archive) if name.startswith(start)]
        return _listed(root.rstrip("/"), names, others)
    if is_url(root):
        return _listed(root.rstrip("/"), list_below(root))
    return _walk(root)


def _listed(base: str, names: Sequence[str], others: Sequence[tuple[str, str]] = ()) -> FileTree:
    """From names that something else lists; a lone folder around everything that has the archive's name is no level.

    `others` are links and pipes of an archive, and why they are left out.
    """
    kept, left_out = [], [(_printable(name), why) for name, why in others if all(map(is_visible, name.split("/")))]
    for name in sorted(names, key=lambda name: name.split("/")):
        parts = name.split("/")
        if name.endswith("/") or not all(map(is_visible, parts)):
            continue
        if is_utf8(name):
            kept.append(name)
        else:
            left_out.append((_printable(name), "its name is not UTF-8"))
    top = stem(base)
    wrapped = bool(kept) and all(name.startswith(f"{top}/") for name in kept)
    return FileTree(
        [f"{base}/{name}" for name in kept], [name[len(top) + 1 :] if wrapped else name for name in kept], left_out
    )


def _walk(root: str) -> FileTree:
    """Follows links, but never in a circle, and opens nothing but folders."""
    tree = FileTree([], [], [], [])
    stack: list[tuple[str, frozenset[tuple[int, int]], Iterator[os.DirEntry[str]]]] = [_entered(root, "", frozenset())]
    while stack:
        folder, above, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        name = f"{folder}/{entry.name}" if folder else entry.name
        if not is_visible(entry.name):
            continue
        if not is_utf8(entry.name):
            tree.left_out.append((_printable(name), "its name is not UTF-8"))
            continue
        mode, why = _kind(entry)
        if stat.S_ISDIR(mode):
            identity = (entry.stat().st_dev, entry.stat().st_ino)
            if identity not in above:  # else a link that leads back to a folder we are inside of
                tree.folders.append(name)
                stack.append(_entered(entry.path, name, above))
        elif stat.S_ISREG(mode):
            tree.files.append(entry.path)
            tree.names.append(name)
        else:
            tree.left_out.append((_printable(name), why))
    return tree


def _entered(
    path: str, name: str, above: frozenset[tuple[int, int]]
) -> tuple[str, frozenset[tuple[int, int]], Iterator[os.DirEntry[str]]]:
    try:
        status = os.stat(path)
        with os.scandir(path) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror or error}).") from error
    return name, above | {(status.st_dev, status.st_ino)}, iter(entries)


def _kind(entry: "os.DirEntry[str]") -> tuple[int, str]:
    """The mode of what a name leads to; 0 with the reason where it leads nowhere."""
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        return 0, "a link to itself" if error.errno == errno.ELOOP else "a link that leads nowhere"
    return mode, "neither a file nor a folder"


def is_utf8(name: str) -> bool:
    """Whether a name can be written as text; Python keeps other bytes of file names as halves of letters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return one_line(name.encode(errors="backslashreplace").decode())


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names[:_SHOWN])) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
