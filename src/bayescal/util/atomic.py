"""Writing files and folders: whole or not at all.

What is written gets a hidden temporary name in the folder of its target (a rename across file systems is not atomic)
and is renamed when it is complete. If the writing fails or is interrupted, the temporary name is removed and what was
there before stays as it was. A killed process leaves its temporary name behind, which is in nobody's way: it is random,
because in a container every process may have the same number.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, fsync: bool = False) -> Iterator[Path]:
    """A temporary name to write a file to; it becomes `path` when the block ends, and is removed if the block fails.

    `fsync`: wait until the content is on the disk, so that not even a power cut leaves an empty file under the name.
    """
    draft = _beside(path, "tmp")
    try:
        yield draft
        if fsync:
            sync(draft)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_text(path: Path, text: str, *, fsync: bool = False) -> None:
    """The text as UTF-8, its line ends as they are."""
    write_bytes(path, text.encode(), fsync=fsync)


def write_bytes(path: Path, content: bytes, *, fsync: bool = False) -> None:
    with replacing(path, fsync=fsync) as draft:
        draft.write_bytes(content)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `path` when the block ends, in place of one that is there.

    If the block or a rename fails, the old folder is back, and folders above that were made for it are gone again.
    """
    path = path.resolve()  # a link stays a link: what it points to is replaced
    draft, retired = _beside(path, "tmp"), _beside(path, "old")
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            os.replace(path, retired)
        os.replace(draft, path)
    finally:
        if retired.exists() and not path.exists():  # the second rename failed
            os.replace(retired, path)
        for folder in (draft, retired):
            shutil.rmtree(folder, ignore_errors=True)
        if not path.exists():
            for parent in new_parents:
                with contextlib.suppress(OSError):
                    parent.rmdir()


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the disk of `path`, for what is to become `path` by a rename; it is gone after the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        yield Path(folder)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{ending}")
