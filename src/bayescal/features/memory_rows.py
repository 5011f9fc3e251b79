"""Rows of features that are not on disk: where nobody wants a cache, or where it cannot be written to."""

import logging
import warnings
from pathlib import Path
from typing import Protocol

import numpy as np

from bayescal.errors import BayescalWarning
from bayescal.features.store import RowStore, UnwritableCache, raw_keys

log = logging.getLogger(__name__)


class Store(Protocol):
    """Rows of float32 found by key; see `RowStore`."""

    dim: int

    @property
    def where(self) -> str: ...

    def has(self, keys: np.ndarray) -> np.ndarray: ...

    def read(self, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, int]: ...

    def append(self, keys: np.ndarray, rows: np.ndarray, remaining: int = 0) -> None: ...

    def flush(self) -> None: ...


class MemoryRows:
    """The rows of one (backbone, transform), as long as the process needs them."""

    where = "memory"

    def __init__(self, dim: int):
        self.dim = dim
        self._rows: dict[bytes, np.ndarray] = {}

    def has(self, keys: np.ndarray) -> np.ndarray:
        return np.fromiter((key in self._rows for key in raw_keys(keys)), dtype=bool, count=len(keys))

    def read(self, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, int]:
        """Put the rows of `keys` (K,) into out[at]; returns which were found (K,), and that none was damaged."""
        found = np.zeros(len(keys), dtype=bool)
        for i, key in enumerate(raw_keys(keys)):
            if (row := self._rows.get(key)) is not None:
                out[at[i]], found[i] = row, True
        return found, 0

    def append(self, keys: np.ndarray, rows: np.ndarray, remaining: int = 0) -> None:
        self._rows.update(zip(raw_keys(keys), np.array(rows, dtype=np.float32), strict=True))

    def flush(self) -> None:
        """Nothing is on a disk."""


class CacheOrMemory:
    """The cache, as far as it can be used: what cannot be written to it stays in memory, with one warning."""

    def __init__(self, folder: Path, dim: int, about: dict[str, str]):
        self.dim, self.where = dim, str(folder)
        self._memory = MemoryRows(dim)
        self._writable = True
        self._store: RowStore | None = None
        try:
            self._store = RowStore(folder, dim, about)
        except UnwritableCache as error:
            self._give_up(error)

    def has(self, keys: np.ndarray) -> np.ndarray:
        here = self._memory.has(keys)
        return here if self._store is None else here | self._store.has(keys)

    def read(self, keys: np.ndarray, out: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, int]:
        found, damaged = self._memory.read(keys, out, at)
        left = np.flatnonzero(~found)
        if self._store is not None and len(left):
            found[left], damaged = self._store.read(keys[left], out, at[left])
        return found, damaged

    def append(self, keys: np.ndarray, rows: np.ndarray, remaining: int = 0) -> None:
        if self._writable and self._store is not None:
            try:
                return self._store.append(keys, rows, remaining)
            except UnwritableCache as error:
                self._give_up(error)
        return self._memory.append(keys, rows)

    def flush(self) -> None:
        if self._store is not None and self._writable:
            self._store.flush()

    def _give_up(self, error: UnwritableCache) -> None:
        self._writable = False
        log.warning("without a feature cache: %s", error)
        warnings.warn(
            f"{error} This command goes on without it, and computes again what another has computed.",
            BayescalWarning,
            stacklevel=4,
        )
