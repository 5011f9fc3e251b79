"""Rows of float32 on disk, found by content: append-only, safe against kills, concurrent writers and bit rot.

A folder holds `bank.json` (what the rows are) and segments. A segment is two files with one random name:

    <name>.rows   D little-endian float32 per row
    <name>.keys   40 bytes per row: SHA-256 of the image (32), number of the view (int32), CRC-32 (uint32)

Only the process that made a segment appends to it, rows first, keys second, so no locks are needed and whatever
is cut off by a kill is at the end. A row counts when its key and its bytes are complete; the CRC-32 covers both
and is checked at every read. Damaged rows are treated as absent.
"""

import errno
import json
import os
import secrets
import shutil
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayescal.errors import DataError

KEY = np.dtype("S36")  # compared as a whole, zero bytes included, because all keys have the full length
_RECORD = np.dtype([("key", KEY), ("crc", "<u4")])
_FORMAT = 1
_APPENDING = threading.Lock()  # of the module, so that a store can be copied and pickled


def make_keys(hashes: Sequence[str], views: Sequence[int]) -> np.ndarray:
    """Keys of every (image, view), images outermost: (len(hashes) · len(views),)."""
    suffixes = [view.to_bytes(4, "little", signed=True) for view in views]
    return np.frombuffer(b"".join(bytes.fromhex(h) + s for h in hashes for s in suffixes), dtype=KEY)


class RowStore:
    """The rows of one (backbone, transform)."""

    def __init__(self, folder: Path, dim: int, about: dict[str, Any]):
        self.folder, self.dim = folder, dim
        self._row_bytes = 4 * dim
        self._segment: tuple[int, str, int] | None = None  # process, name, rows written
        self._sizes: dict[str, int] = {}  # rows per segment when the index was made
        self._index()
        _check_header(folder, {"format": _FORMAT, "dim": dim, **about})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_segment": None}  # a copy must not append to the same file

    def read(self, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, int]:
        """Put the rows of `keys` (K,) into out[at]; returns which were found (K,) and how many were damaged."""
        self._refresh()
        first = np.searchsorted(self._keys, keys, side="left")
        end = np.searchsorted(self._keys, keys, side="right")
        found = np.zeros(len(keys), dtype=bool)
        had_any = end > first
        todo = np.flatnonzero(had_any)
        while len(todo):  # several segments may hold a row; take the first that is whole
            found[todo] = self._read_checked(first[todo], keys[todo], out, at[todo])
            first[todo] += 1
            todo = todo[~found[todo] & (first[todo] < end[todo])]
        return found, int((had_any & ~found).sum())

    def append(self, keys: np.ndarray, rows: np.ndarray, remaining: int = 0) -> None:
        """Write rows (n, D). `remaining`: rows still to come, for the message when the disk is full."""
        rows = np.ascontiguousarray(rows, dtype="<f4")
        records = np.empty(len(keys), dtype=_RECORD)
        records["key"] = keys
        records["crc"] = [_crc(k, row) for k, row in zip(_raw(keys), rows, strict=True)]
        with _APPENDING:
            name, written = self._own_segment()
            self._segment = None  # until both files are complete: never append behind a half-written row
            try:
                _append(self.folder / f"{name}.rows", rows)
                _append(self.folder / f"{name}.keys", records)
            except OSError as error:
                _cut(self.folder / f"{name}.rows", written * self._row_bytes)
                needed = (len(rows) + remaining) * (self._row_bytes + _RECORD.itemsize)
                raise DataError(_write_problem(self.folder, error, needed)) from error
            self._segment = (os.getpid(), name, written + len(rows))

    def _own_segment(self) -> tuple[str, int]:
        """The segment this store appends to; a fresh one after a fork, a failure or interference."""
        if self._segment is not None:
            process, name, written = self._segment
            if process == os.getpid() and self._count(name) == (written, 0):
                return name, written
        return secrets.token_hex(8), 0

    def _count(self, name: str) -> tuple[int, int]:
        """Complete rows of a segment, and the bytes that follow them."""
        try:
            rows = os.path.getsize(self.folder / f"{name}.rows")
            keys = os.path.getsize(self.folder / f"{name}.keys")
        except FileNotFoundError:  # killed before its first key, or removed by someone
            return 0, 0
        n = min(rows // self._row_bytes, keys // _RECORD.itemsize)
        return n, rows - n * self._row_bytes + keys - n * _RECORD.itemsize

    def _refresh(self) -> None:
        names = sorted(entry.name[: -len(".keys")] for entry in os.scandir(self.folder) if entry.name.endswith(".keys"))
        sizes = {name: n for name in names if (n := self._count(name)[0])}
        if sizes != self._sizes:
            self._index(sizes)

    def _index(self, sizes: dict[str, int] | None = None) -> None:
        """Read the keys of all segments and sort them: 52 bytes of memory per row."""
        self._sizes = sizes or {}
        records = [np.fromfile(self.folder / f"{name}.keys", dtype=_RECORD, count=n) for name, n in self._sizes.items()]
        together = np.concatenate(records) if records else np.empty(0, dtype=_RECORD)
        counts = list(self._sizes.values())
        order = np.argsort(together["key"], kind="stable")
        self._keys = together["key"][order]
        self._crcs = together["crc"][order]
        self._segments = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[order]
        starts = np.cumsum([0, *counts])[:-1]
        self._rows = (np.arange(len(order)) - np.repeat(starts, counts))[order] if counts else order

    def _read_checked(self, where: np.ndarray, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Copy the rows at index positions `where` (k,) to out[at]; returns which of them were whole (k,)."""
        whole = np.zeros(len(where), dtype=bool)
        names = list(self._sizes)
        raw = _raw(keys)
        for segment in np.unique(self._segments[where]):
            name = names[segment]
            try:
                stored = np.memmap(
                    self.folder / f"{name}.rows", dtype="<f4", mode="r", shape=(self._sizes[name], self.dim)
                )
            except (OSError, ValueError):  # removed or cut since it was indexed
                continue
            mine = np.flatnonzero(self._segments[where] == segment)
            for i in mine[np.argsort(self._rows[where[mine]])]:  # in the order of the file
                row = np.array(stored[self._rows[where[i]]])
                if _crc(raw[i], row) == self._crcs[where[i]]:
                    out[at[i]] = row
                    whole[i] = True
        return whole


def _raw(keys: np.ndarray) -> list[bytes]:
    """Keys as bytes of full length; numpy itself drops zero bytes at the end."""
    data = np.ascontiguousarray(keys).tobytes()
    return [data[i : i + KEY.itemsize] for i in range(0, len(data), KEY.itemsize)]


def _crc(key: bytes, row: np.ndarray) -> int:
    return zlib.crc32(row, zlib.crc32(key))


def _append(path: Path, data: np.ndarray) -> None:
    with open(path, "ab", buffering=0) as stream:
        left = memoryview(data.view(np.uint8).reshape(-1))
        while left:  # an unbuffered write may take only part
            left = left[stream.write(left) :]


def _cut(path: Path, size: int) -> None:
    """Give back the space of half-written rows; without success the file is merely longer than it need be."""
    try:
        if size:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        pass


def _check_header(folder: Path, expected: dict[str, Any]) -> None:
    """Make the folder and its description, or compare with the one that is there."""
    path = folder / "bank.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary = folder / f".{secrets.token_hex(8)}.tmp"
            temporary.write_text(json.dumps(expected, indent=2) + "\n")
            os.replace(temporary, path)
        text = path.read_text()
    except OSError as error:
        raise DataError(_write_problem(folder, error, 4096)) from error
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    different = [key for key in expected if found.get(key) != expected[key]]
    if different:
        key = different[0]
        raise DataError(
            f"{path} describes other features: {key} is {found.get(key)!r}, expected {expected[key]!r}. "
            f"Delete the folder {folder} (it is only a cache) or set BAYESCAL_CACHE to another one."
        )


def _write_problem(folder: Path, error: OSError, needed: int) -> str:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        free = shutil.disk_usage(existing).free
        return (
            f"the disk is full: features in {folder} need {_megabytes(needed)} more and {_megabytes(free)} are "
            "free. Make room, or set BAYESCAL_CACHE to a folder on another disk; finished features are kept."
        )
    return (
        f"features cannot be written to {folder}: {error.strerror or error}. "
        "Set BAYESCAL_CACHE to a folder that can be written to."
    )


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB"
