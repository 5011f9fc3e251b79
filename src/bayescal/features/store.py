"""Rows of float32 on disk, found by content: append-only, safe against kills, concurrent writers and bit rot.

A folder holds `bank.json` (what the rows are) and segments. A segment is two files with one random name:

    <name>.rows   D little-endian float32 per row
    <name>.keys   40 bytes per row: SHA-256 of the image (32), number of the view (int32), CRC-32 (uint32)

Only the process that made a segment appends to it, rows first, keys second, so no locks are needed and whatever
is cut off by a kill is at the end. A row counts when its key and its bytes are complete; the CRC-32 covers both
and is checked at every read. Damaged rows are treated as absent.

Memory does not grow with the features: an index of 16 bytes per row, and files are mapped a window at a time.

By hand, because embedded databases and array files let one writer in at a time, and here every process may add rows.
"""

import errno
import json
import mmap
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from bayescal.errors import DataError
from bayescal.features.compaction import begin_segment, clear_leftovers, join_small_segments
from bayescal.util.atomic import clear_drafts, sync, sync_folder, write_text
from bayescal.util.jsonable import loads
from bayescal.util.regular import read_file

KEY = np.dtype("S36")  # compared as a whole, zero bytes included, because all keys have the full length
_RECORD = np.dtype([("key", KEY), ("crc", "<u4")])
_PARTS = np.dtype([("head", "<u8"), ("tail", "V24"), ("view", "<u4")])  # of a key
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # makes the views of an image differ in their tags
_FORMAT = 1
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)
_WINDOW = 1 << 24  # bytes of a file that are mapped at a time
_SPARSE = 8  # where less than one byte in so many is wanted, the disk need not read ahead
_BATCH = 1 << 16  # records that are indexed at a time
_FLUSH_SECONDS = 10.0  # of computing that a power cut can take
_APPENDING = threading.Lock()  # of the module, so that a store can be copied and pickled


def make_keys(hashes: Sequence[str], views: Sequence[int]) -> np.ndarray:
    """Keys of every (image, view), images outermost: (len(hashes) · len(views),)."""
    digests = np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8).reshape(len(hashes), 32)
    return keys_of(digests, views)


def keys_of(digests: np.ndarray, views: Sequence[int]) -> np.ndarray:
    """As `make_keys`, from hashes as bytes (n, 32)."""
    keys = np.empty((len(digests), len(views), KEY.itemsize), dtype=np.uint8)
    keys[..., :32] = digests[:, None]
    keys[..., 32:] = np.array(views, dtype="<i4").reshape(-1, 1).view(np.uint8)
    return keys.reshape(-1).view(KEY)


class RowStore:
    """The rows of one (backbone, transform)."""

    def __init__(self, folder: Path, dim: int, about: dict[str, Any]):
        self.folder, self.dim = folder, dim
        self._row = np.dtype(("<f4", (dim,)))
        self._segment: tuple[int, str, int] | None = None  # process, name, rows written
        self._flushed = time.monotonic()
        self._held: IO[bytes] | None = None  # the keys of that segment, open for the lock on it
        self._forget()
        _check_header(folder, {"format": _FORMAT, "dim": dim, **about})
        clear_drafts(folder)
        clear_leftovers(folder, _RECORD)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_segment": None, "_held": None}  # a copy must not append to the same file

    @property
    def where(self) -> str:
        return str(self.folder)

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Which of `keys` (K,) are there, (K,). Rows are not looked at: one that is damaged counts."""
        self._refresh()
        there = np.zeros(len(keys), dtype=bool)
        for todo, where in self._candidates(keys, there):
            there[todo] = self._crcs(where, keys[todo])[0]
        return there

    def read(self, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, int]:
        """Put the rows of `keys` (K,) into out[at]; returns which were found (K,) and how many were damaged."""
        found = np.zeros(len(keys), dtype=bool)
        met = np.zeros(len(keys), dtype=bool)
        for _ in range(2):  # again where another process has joined segments in between
            self._refresh()
            before = dict(self._sizes)
            for todo, where in self._candidates(keys, found):
                same, crcs = self._crcs(where, keys[todo])
                todo = todo[same]
                met[todo] = True
                found[todo] = self._read_checked(where[same], crcs[same], keys[todo], out, at[todo])
            if found.all() or before.keys() <= self._segment_names():
                break
        return found, int((met & ~found).sum())

    def _counts(self) -> dict[str, int]:
        """Complete rows of each segment that has any."""
        return {name: n for name in sorted(self._segment_names()) if (n := self._count(name)[0])}

    def _segment_names(self) -> set[str]:
        return {entry.name[: -len(".keys")] for entry in os.scandir(self.folder) if entry.name.endswith(".keys")}

    def append(self, keys: np.ndarray, rows: np.ndarray, remaining: int = 0) -> None:
        """Write rows (n, D). `remaining`: rows still to come, for the message when the disk is full."""
        rows = np.ascontiguousarray(rows, dtype="<f4")
        records = np.empty(len(keys), dtype=_RECORD)
        records["key"] = keys
        records["crc"] = [_crc(k, row) for k, row in zip(raw_keys(keys), rows, strict=True)]
        with _APPENDING:
            name, written = self._own_segment()
            self._segment = None  # until both files are complete: never append behind a half-written row
            try:
                _append(self.folder / f"{name}.rows", rows)
                _append(self.folder / f"{name}.keys", records)
            except OSError as error:
                _cut(self.folder / f"{name}.rows", written * self._row.itemsize)
                needed = (len(rows) + remaining) * (self._row.itemsize + _RECORD.itemsize)
                raise _write_problem(self.folder, error, needed) from error
            self._segment = (os.getpid(), name, written + len(rows))
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush(name)

    def flush(self) -> None:
        """Wait until what this store wrote is on the disk; rows that a power cut takes are computed again."""
        with _APPENDING:
            if self._segment is not None and self._segment[0] == os.getpid():
                self._flush(self._segment[1])

    def _flush(self, name: str) -> None:
        with suppress(OSError):  # removed in the meantime, or a disk that cannot: the rows are checked when read
            for suffix in ("rows", "keys"):  # a key that is there without its row costs nothing: its checksum is wrong
                sync(self.folder / f"{name}.{suffix}")
            sync_folder(self.folder)
        self._flushed = time.monotonic()

    def __del__(self) -> None:
        if (held := getattr(self, "_held", None)) is not None:
            held.close()

    def _own_segment(self) -> tuple[str, int]:
        """The segment this store appends to; a fresh one after a fork, a failure or interference."""
        if self._segment is not None:
            process, name, written = self._segment
            if process == os.getpid() and self._count(name) == (written, 0):
                return name, written
        try:
            with suppress(OSError):  # a full disk stops no command here: there is nothing new in what is joined
                join_small_segments(self.folder, self._counts(), self._row, _RECORD)
            name, self._held = begin_segment(self.folder)
        except OSError as error:
            raise _write_problem(self.folder, error, _RECORD.itemsize) from error
        return name, 0

    def _count(self, name: str) -> tuple[int, int]:
        """Complete rows of a segment, and the bytes that follow them."""
        try:
            rows = os.path.getsize(self.folder / f"{name}.rows")
            keys = os.path.getsize(self.folder / f"{name}.keys")
        except FileNotFoundError:  # killed before its first key, or removed by someone
            return 0, 0
        n = min(rows // self._row.itemsize, keys // _RECORD.itemsize)
        return n, rows - n * self._row.itemsize + keys - n * _RECORD.itemsize

    # --- the index: where each key may be --------------------------------------------------------------------------

    def _forget(self) -> None:
        self._sizes: dict[str, int] = {}  # rows per segment that are in the index, in the order of their numbers
        self._tags = np.empty(0, dtype=np.uint64)  # ascending, one per row
        self._segments = np.empty(0, dtype=np.uint32)  # of each tag
        self._rows = np.empty(0, dtype=np.uint32)  # of each tag, in its segment

    def _refresh(self) -> None:
        """Index what has been added since the last time; all anew where something is gone."""
        sizes = self._counts()
        if sizes == self._sizes:
            return
        if any(sizes.get(name, 0) < n for name, n in self._sizes.items()):
            self._forget()
        sizes = {name: sizes[name] for name in [*self._sizes, *sorted(sizes.keys() - self._sizes.keys())]}
        parts = [
            (segment, first, sizes[name])
            for segment, name in enumerate(sizes)
            if (first := self._sizes.get(name, 0)) < sizes[name]
        ]
        self._sizes = sizes
        tags = [self._tags, *(self._new_tags(*part) for part in parts)]
        segments = [self._segments, *(np.full(end - first, s, dtype=np.uint32) for s, first, end in parts)]
        rows = [self._rows, *(np.arange(first, end, dtype=np.uint32) for _, first, end in parts)]
        order = np.argsort(together := np.concatenate(tags), kind="stable")
        self._tags = together[order]
        self._segments = np.concatenate(segments)[order]
        self._rows = np.concatenate(rows)[order]

    def _new_tags(self, segment: int, first: int, end: int) -> np.ndarray:
        """Tags of rows first … end−1 of a segment."""
        tags = np.zeros(end - first, dtype=np.uint64)  # what cannot be read stays zero, and is found out by its key
        for at in range(first, end, _BATCH):
            try:
                path = self.folder / f"{self._name(segment)}.keys"
                offset, count = at * _RECORD.itemsize, min(_BATCH, end - at)
                records = np.fromfile(path, dtype=_RECORD, count=count, offset=offset)
            except OSError:  # removed since its size was asked for
                break
            tags[at - first : at - first + len(records)] = _tags(records["key"])
        return tags

    def _name(self, segment: int) -> str:
        return list(self._sizes)[segment]

    def _candidates(self, keys: np.ndarray, done: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Which keys to look for (k,) and at which positions of the index (k,), until all that can be are `done`.

        Several segments may hold a key, so those that were not done at one position are looked for at the next.
        """
        tags = _tags(keys)
        at = np.searchsorted(self._tags, tags, side="left")
        end = np.searchsorted(self._tags, tags, side="right")
        todo = np.flatnonzero(end > at)
        while len(todo):
            yield todo, at[todo]
            at[todo] += 1
            todo = todo[~done[todo] & (at[todo] < end[todo])]

    # --- the files ---------------------------------------------------------------------------------------------------

    def _crcs(self, where: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether the keys at index positions `where` (k,) are really these, (k,), and the CRC of their rows (k,)."""
        same = np.zeros(len(where), dtype=bool)
        crcs = np.zeros(len(where), dtype=np.uint32)
        for mine, records in self._stored(where, "keys", _RECORD):
            same[mine] = records["key"] == keys[mine]
            crcs[mine] = records["crc"]
        return same, crcs

    def _read_checked(
        self, where: np.ndarray, crcs: np.ndarray, keys: np.ndarray, out: np.ndarray, at: np.ndarray
    ) -> np.ndarray:
        """Copy the rows at index positions `where` (k,) to out[at]; returns which of them were whole (k,)."""
        whole = np.zeros(len(where), dtype=bool)
        for mine, rows in self._stored(where, "rows", self._row):
            computed = [_crc(key, row) for key, row in zip(raw_keys(keys[mine]), rows, strict=True)]
            good = np.array(computed, dtype=np.uint32) == crcs[mine]
            whole[mine] = good
            out[at[mine[good]]] = rows[good]
        return whole

    def _stored(self, where: np.ndarray, suffix: str, kind: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What the files hold for index positions `where` (k,), a window at a time: positions in `where`, and a copy.

        Segments or ends of them that are gone are left out.
        """
        segments, rows = self._segments[where], self._rows[where].astype(np.int64)
        order = np.lexsort((rows, segments))  # as they lie in the files
        most = max(1, _WINDOW // kind.itemsize)
        for segment in np.unique(segments):
            mine = order[np.searchsorted(segments[order], segment) : np.searchsorted(segments[order], segment, "right")]
            try:
                with open(self.folder / f"{self._name(segment)}.{suffix}", "rb") as file:
                    while len(mine):
                        n = min(most, int(np.searchsorted(rows[mine], rows[mine[0]] + most)))
                        yield mine[:n], _copy_rows(file.fileno(), kind, rows[mine[:n]])
                        mine = mine[n:]
            except (OSError, ValueError):  # removed or cut since it was indexed
                continue


def _copy_rows(file: int, kind: np.dtype, rows: np.ndarray) -> np.ndarray:
    """Items `rows` (n,), ascending, of a file of items of a kind, by mapping the part of it that they lie in."""
    start, end = int(rows[0]) * kind.itemsize, (int(rows[-1]) + 1) * kind.itemsize
    page = start - start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(file, end - page, access=mmap.ACCESS_READ, offset=page)
    if len(rows) * kind.itemsize * _SPARSE < end - start and hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    items = np.frombuffer(mapped, dtype=kind, offset=start - page)
    return items[rows - rows[0]]


def _tags(keys: np.ndarray) -> np.ndarray:
    """64 bits of each key: equal keys have equal tags, others almost never."""
    parts = np.ascontiguousarray(keys).view(_PARTS)
    return parts["head"] ^ (parts["view"] * _SPREAD)


def raw_keys(keys: np.ndarray) -> list[bytes]:
    """Keys as bytes of full length; numpy itself drops zero bytes at the end."""
    data = np.ascontiguousarray(keys).tobytes()
    return [data[i : i + KEY.itemsize] for i in range(0, len(data), KEY.itemsize)]


def _crc(key: bytes, row: np.ndarray) -> int:
    return zlib.crc32(row.data, zlib.crc32(key))


def _append(path: Path, data: np.ndarray) -> None:
    with open(path, "ab", buffering=0) as stream:
        left = memoryview(data.view(np.uint8).reshape(-1).data)
        while left:  # an unbuffered write may take only part
            left = left[stream.write(left) :]


def _cut(path: Path, size: int) -> None:
    """Give back the space of half-written rows; if that fails, the file is just longer than needed."""
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
            write_text(path, json.dumps(expected, indent=2) + "\n")
        text = read_file(path)
    except OSError as error:
        raise _write_problem(folder, error, 4096) from error
    try:
        found = loads(text)
    except ValueError:
        found = {}
    found = found if isinstance(found, dict) else {}
    different = [key for key in expected if found.get(key) != expected[key]]
    if different:
        key = different[0]
        raise DataError(
            f"{path} describes other features: {key} is {found.get(key)!r}, expected {expected[key]!r}. "
            f"Delete the folder {folder} (it is only a cache) or set BAYESCAL_CACHE to another one."
        )


class UnwritableCache(DataError):
    """Nothing can be written to the folder of the cache, now or later."""


def _write_problem(folder: Path, error: OSError, needed: int) -> DataError:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        return DataError(
            f"the disk is full: features in {folder} need {_megabytes(needed)} more and {_megabytes(free)} are "
            "free. Make room, or set BAYESCAL_CACHE to a folder on another disk; finished features are kept."
        )
    return (UnwritableCache if error.errno in _UNWRITABLE else DataError)(
        f"features cannot be written to {folder}: {error.strerror or error}. "
        "Set BAYESCAL_CACHE to a folder that can be written to."
    )


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB"
