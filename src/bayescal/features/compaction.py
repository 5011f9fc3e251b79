"""Many small segments of a `RowStore` become one, so that a cache does not grow slow with the commands that used it.

Every process writes a segment of its own, and holds a shared lock on it as long as it may append; the system gives the
lock back when the process ends, however it ends. A segment is only taken by who gets the exclusive lock, so nothing
that somebody still writes is touched. The new segment is complete before the first old one goes: a process that is
killed in between leaves rows twice, never not at all.
"""

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import numpy as np

try:
    import fcntl
except ImportError:  # Windows, where small segments stay as they are
    fcntl = None

SMALL = 4096  # rows; what is larger is not worth moving
MANY = 64  # small segments that are joined


def begin_segment(folder: Path) -> tuple[str, IO[bytes]]:
    """The name of a new segment, and its keys: no other process touches the segment while they are open."""
    while True:
        name = secrets.token_hex(8)
        path = folder / f"{name}.keys"
        file = open(path, "ab")  # noqa: SIM115 - open as long as the segment is ours
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks: its segments are never joined or removed
                fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        if path.exists():  # else it was removed as a leftover just before it was locked
            return name, file
        file.close()


def clear_leftovers(folder: Path, record: np.dtype) -> None:
    """Remove what killed processes left of segments: rows without keys, and segments of less than a row.

    The keys of a segment are made first and removed first, and whoever writes it holds a lock on them.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith((".keys", ".rows"))}
        for name in sorted({name.rpartition(".")[0] for name in sizes}):
            keys, rows = folder / f"{name}.keys", folder / f"{name}.rows"
            if keys.name not in sizes:
                rows.unlink()
            elif sizes[keys.name] < record.itemsize:
                _remove_if_free(keys, rows, record)


def _remove_if_free(keys: Path, rows: Path, record: np.dtype) -> None:
    with suppress(OSError), open(keys, "rb") as file:
        if _takes(file) and os.fstat(file.fileno()).st_size < record.itemsize:
            keys.unlink()
            rows.unlink(missing_ok=True)


def _takes(file: IO[bytes]) -> bool:
    """Whether nobody may append to a segment any more."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def join_small_segments(folder: Path, rows_of: Mapping[str, int], row: np.dtype, record: np.dtype) -> int:
    """Join the small segments of a store if there are many; how many were joined. `rows_of`: by name."""
    small = [name for name, rows in rows_of.items() if rows <= SMALL]
    if fcntl is None or len(small) < MANY:
        return 0
    with ExitStack() as stack:
        taken: list[tuple[str, np.ndarray, np.ndarray]] = []
        for name in small:
            with suppress(OSError):
                keys = stack.enter_context(open(folder / f"{name}.keys", "rb"))
                if _takes(keys) and (folder / f"{name}.keys").exists():  # else another process has just joined it
                    taken.append((name, *_complete(folder, name, row, record)))
        if len(taken) < 2:
            return 0
        new, held = begin_segment(folder)
        stack.enter_context(held)
        try:  # rows first: a row counts when its key is there too
            _write(folder / f"{new}.rows", np.concatenate([rows for _, rows, _ in taken]))
            _write(folder / f"{new}.keys", np.concatenate([keys for _, _, keys in taken]))
        except OSError:  # the disk is full: all is as it was
            for suffix in ("keys", "rows"):
                (folder / f"{new}.{suffix}").unlink(missing_ok=True)
            return 0
        for name, _, _ in taken:
            for suffix in ("keys", "rows"):  # keys first: rows without a key do not count
                with suppress(OSError):
                    (folder / f"{name}.{suffix}").unlink()
    return len(taken)


def _complete(folder: Path, name: str, row: np.dtype, record: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Rows and keys of a segment, as far as both are there."""
    keys = np.fromfile(folder / f"{name}.keys", dtype=record)
    rows = np.fromfile(folder / f"{name}.rows", dtype=row)
    n = min(len(keys), len(rows))
    return rows[:n], keys[:n]


def _write(path: Path, data: np.ndarray) -> None:
    with open(path, "wb") as file:
        data.tofile(file)
        file.flush()
        os.fsync(file.fileno())
