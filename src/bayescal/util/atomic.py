"""Writing files and folders: whole or not at all, and on the disk before anything depends on them.

What is written gets a hidden temporary name (a draft) in the folder of its target, because a rename across file systems
is not atomic. When it is complete, it is flushed to the disk and renamed, and then the folder is flushed: after a power
cut there is what was there before or what was written, whole (docs/robustness.md). If the writing fails or is
interrupted, the draft is removed and what was there before stays as it was.

A killed process leaves its draft behind. Its name says whose it is, and whoever writes into the folder next removes it.

A folder takes the place of another by an exchange of their names, so that one of them is there at every moment. Where
the system has no exchange there are two renames, and the old folder's name in between is the journal: if the process
dies there, `finish_replacing` puts the old folder back.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from bayescal.errors import BayescalError
from bayescal.util.exchange import exchange
from bayescal.util.process import is_alive, process_mark

PATIENCE = 7 * 86_400.0  # seconds after which a draft is nobody's, where its process cannot be asked for
PAUSE = 10.0  # seconds after which no living process is between two neighbouring steps, where it cannot be asked for
_LONGEST = 255  # bytes of a name, on nearly all file systems
_DRAFT = re.compile(r"\..+\.(?P<tail>(?P<mark>[0-9a-f]{8}-\d+-\d*)\.[0-9a-f]{8}\.(?P<ending>tmp|old))", re.DOTALL)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write a file to; it becomes `path` when the block ends, and is removed if the block fails."""
    path = replaceable(path)
    clear_drafts(path.parent)
    draft = _beside(path, "tmp")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(draft)):
            error.filename = str(path)  # a full disk names no file, and nobody knows the draft
        raise
    sync_folder(path.parent)


def replaceable(path: Path) -> Path:
    """The file that a path stands for: a link stays a link, what it points to is replaced.

    A device or a pipe is refused: a rename would put a file in its place.
    """
    try:
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise BayescalError(f"{path} is a device, a pipe or a socket: expected the name of a file to write")
        return path.resolve() if path.is_symlink() else path
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BayescalError(
                f"{path} is a link that leads to itself: expected the name of a file to write"
            ) from error
        return Path(os.path.realpath(path)) if path.is_symlink() else path  # to what is not there yet


def write_text(path: Path, text: str) -> None:
    """The text as UTF-8, its line ends as they are."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as draft:
        draft.write_bytes(content)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `path` when the block ends, in place of one that is there.

    If the block or a rename fails, the old folder is back, and folders above that were made for it are gone again.
    """
    path = path.resolve()  # a link stays a link: what it points to is replaced
    finish_replacing(path)
    clear_drafts(path.parent)
    draft, retired = _beside(path, "tmp"), _beside(path, "old")
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
        yield draft
        _sync_all(draft)
        if not (path.exists() and exchange(draft, path)):  # exchanged, the old one has the name of the draft
            if path.exists():
                os.replace(path, retired)
            os.replace(draft, path)
        sync_folder(path.parent)
    finally:
        if retired.exists() and not path.exists():  # the second rename failed
            os.replace(retired, path)
        for folder in (draft, retired):
            _remove(folder)
        if not path.exists():
            for parent in new_parents:
                with contextlib.suppress(OSError):
                    parent.rmdir()


def finish_replacing(path: Path) -> None:
    """Put a folder back that was moved out of the way by a process that died before the new one had its name."""
    path = path.resolve()
    if path.exists():
        return
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        retired = [entry for entry in entries if _is_left_of(path, entry)]
        if retired:
            os.rename(max(retired, key=_renamed_at), path)
            sync_folder(path.parent)


def _is_left_of(path: Path, entry: os.DirEntry[str]) -> bool:
    """Whether this is the folder `path`, moved out of the way by a process that is dead."""
    found = _DRAFT.fullmatch(entry.name)
    if not found or found["ending"] != "old" or beside(path, found["tail"]).name != entry.name:
        return False
    alive = is_alive(found["mark"])
    return time.time() - _renamed_at(entry) > PAUSE if alive is None else not alive


def _renamed_at(entry: os.DirEntry[str]) -> float:
    return entry.stat(follow_symlinks=False).st_ctime


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the disk of `path`, for what is to become `path` by a rename; it is gone after the block.

    It is not flushed: this is for what can be made or downloaded again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_drafts(path.parent)
    draft = _beside(path, "tmp")
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that."""
    with contextlib.suppress(OSError):  # not on Windows, nor on every network disk
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def clear_drafts(folder: Path) -> None:
    """Remove what processes that are dead left behind in a folder when they were killed while they wrote into it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _DRAFT.fullmatch(entry.name)
            if found and _is_nobodys(entry, found["mark"]) and not _is_the_only_one(folder, found):
                _remove(Path(entry.path))


def beside(path: Path, ending: str) -> Path:
    """The hidden name `.NAME.ending` in the folder of `path`, cut where file systems would refuse it as too long."""
    room = _LONGEST - len(os.fsencode(ending)) - 2
    name = os.fsencode(path.name)
    if len(name) > room:  # the end of the name may be all that differs from its neighbours: a few letters stand for it
        name = name[: room - 9].decode(errors="ignore").encode() + f"-{sha256(name).hexdigest()[:8]}".encode()
    return path.with_name(f".{os.fsdecode(name)}.{ending}")


def _beside(path: Path, ending: str) -> Path:
    return beside(path, f"{process_mark()}.{secrets.token_hex(4)}.{ending}")


def _is_nobodys(entry: os.DirEntry[str], mark: str) -> bool:
    """Whether the process that made a draft is dead; where it cannot be asked for, whether the draft is old."""
    alive = is_alive(mark)
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > PATIENCE if alive is None else not alive


def _is_the_only_one(folder: Path, found: re.Match[str]) -> bool:
    """A folder that was moved out of the way, with nothing in its place: the process died between two renames."""
    return found["ending"] == "old" and not any(
        beside(folder / name, found["tail"]).name == found[0] for name in os.listdir(folder)
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _sync_all(folder: Path) -> None:
    """Every file in a folder, and the folder itself."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sync(path)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)
