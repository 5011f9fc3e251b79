"""`FeatureRows`: features of many images that stay on disk until they are asked for."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayescal.data.sources import ImageSource
from bayescal.errors import BackboneError, BayescalWarning, DataError
from bayescal.features.content_index import ContentIndex
from bayescal.features.decode import ImageRequest, Rows
from bayescal.features.extract import name_of
from bayescal.features.memory_rows import Store
from bayescal.features.store import make_keys
from bayescal.util.harmless import one_line
from bayescal.util.progress import Bar, progress_bar

_BLOCK = 1 << 16  # rows that are looked up at once
_TRIES = 3  # rows that were computed and stored, and still are not there, mean that somebody empties the cache

Compute = Callable[
    [Iterable[ImageRequest], int], Generator[Rows, None, None]
]  # wanted images and the number of their views → features


@dataclass(frozen=True)
class Failure:
    """An image that could not be used."""

    index: int  # in the list that was given
    name: str
    reason: str

    @classmethod
    def of(cls, source: ImageSource, index: int, reason: str) -> "Failure":
        return cls(index, name_of(source, index), reason)


def describe_failures(
    failures: Sequence[Failure], total: int, what: str = "could not be read and were left out", shown: int = 3
) -> str:
    """How many of `total` images could not be read, and the first of them with the reason."""
    first = "; ".join(f"{one_line(failure.name)}: {failure.reason.rstrip('.')}" for failure in failures[:shown])
    more = f"; and {len(failures) - shown} more" if len(failures) > shown else ""
    return f"{len(failures)} of {total} images {what} ({first}{more})"


class FeatureRows:
    """Features of N images, row by row in the order given: (N, D), or (N, V, D) for views.

    All of them are in the cache once this exists. Memory is 40 bytes an image; features are read by `read`, which
    touches the rows it is asked for alone. A row that turns out to be damaged or gone is computed again.
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        contents: ContentIndex,
        views: int | None,
        store: Store,
        compute: Compute,
        model: str,
        progress: bool = False,
    ):
        """Use `FeatureBank.rows`. `views` None: one row per image. `model`: the backbone's name, for messages."""
        self.contents, self.computed = contents, 0
        self._sources, self._views, self._store, self._compute = sources, views, store, compute
        self._model, self._progress = model, progress
        self._undecodable: dict[int, str] = {}  # by the first image of that content
        images = contents.distinct
        self._complete(images, self._missing(images))

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *(() if self._views is None else (self._views,)), self._store.dim)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Images that could not be read, copies of them included."""
        problems = dict(self.contents.problems)
        if self._undecodable:
            for i in np.flatnonzero(np.isin(self.contents.first, list(self._undecodable))).tolist():
                problems[i] = self._undecodable[int(self.contents.first[i])]
        return tuple(Failure.of(self._sources[i], i, problems[i]) for i in sorted(problems))

    def read(self, indices: int | slice | Sequence[int] | Sequence[bool] | np.ndarray = slice(None)) -> Tensor:
        """Features of some images, by number, slice or mask: (n, D) or (n, V, D) float32, NaN for failures."""
        images = np.atleast_1d(self.contents.first[indices])
        out = np.full((len(images), self._per_image, self._store.dim), np.nan, dtype=np.float32)
        at = np.flatnonzero(images >= 0)
        for _ in range(_TRIES):
            at = at[~np.isin(images[at], list(self._undecodable))]
            missing = self._read(images[at], at, out)
            at, missing = at[missing.any(axis=1)], missing[missing.any(axis=1)]
            if not len(at):
                features = torch.from_numpy(out)
                return features[:, 0] if self._views is None else features
            again, where = np.unique(images[at], return_index=True)
            self._complete(again, missing[where])
        raise DataError(
            f"features that were just stored in {self._store.where} cannot be read back. Is another program deleting "
            "files there? Set BAYESCAL_CACHE to another folder."
        )

    @property
    def _per_image(self) -> int:
        return 1 if self._views is None else self._views

    def _blocks(self, n: int) -> Iterator[slice]:
        step = max(1, _BLOCK // max(1, self._per_image))
        return (slice(at, at + step) for at in range(0, n, step))

    def _missing(self, images: np.ndarray) -> np.ndarray:
        """Which views of images (n,) are not in the cache: (n, V)."""
        missing = np.empty((len(images), self._per_image), dtype=bool)
        for block in self._blocks(len(images)):
            there = self._store.has(self.contents.keys(images[block], self._per_image))
            missing[block] = ~there.reshape(missing[block].shape)
        return missing

    def _read(self, images: np.ndarray, at: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Put views of images (n,) into out[at] and say which could not be found: (n, V)."""
        flat, views = out.reshape(-1, self._store.dim), np.arange(self._per_image)
        missing = np.empty((len(images), self._per_image), dtype=bool)
        damaged = 0
        for block in self._blocks(len(images)):
            keys = self.contents.keys(images[block], self._per_image)
            positions = (at[block, None] * self._per_image + views).reshape(-1)
            found, bad = self._store.read(keys, flat, positions)
            missing[block] = ~found.reshape(missing[block].shape)
            damaged += bad
        if damaged:
            warnings.warn(
                f"{damaged} damaged rows in the feature cache {self._store.where} are computed again",
                BayescalWarning,
                stacklevel=4,
            )
        return missing

    def _complete(self, images: np.ndarray, missing: np.ndarray) -> None:
        """Compute and store the missing views (n, V) of distinct images (n,)."""
        left, computed = int(missing.sum()), 0
        with (
            self._bar(missing.size, left) as bar,
            closing(self._compute(self._wanted(images, missing), left)) as results,
        ):
            for rows in results:
                computed += len(rows.views)
                self.computed += len(rows.views)
                self._undecodable |= rows.problems
                self._add(rows, remaining=left - computed)
                bar.advance(len(rows.views) + self._per_image * len(rows.problems))
        self._store.flush()

    def _bar(self, total: int, left: int) -> AbstractContextManager[Bar]:
        """Nothing is shown where nothing is to be computed. The line stays: it says how fast this was."""
        title, cached = "features" if self._progress and left else None, total - left
        unit, said = "images" if self._per_image == 1 else "views", f"{cached:,} from the cache"
        return progress_bar(title, total, unit=unit, speed=True, done=cached, said=said, transient=False)

    def _wanted(self, images: np.ndarray, missing: np.ndarray) -> Iterator[ImageRequest]:
        for n in np.flatnonzero(missing.any(axis=1)):
            i = int(images[n])
            content = self.contents.digests[i].tobytes().hex()
            source = self.contents.held(i) or self._sources[i]
            yield ImageRequest(i, source, content, tuple(np.flatnonzero(missing[n]).tolist()))

    def _add(self, rows: Rows, remaining: int) -> None:
        """Add finished rows to the cache, all but those with values that are not finite."""
        finite = np.isfinite(rows.values).all(axis=1)
        pairs = zip(rows.images, rows.views, strict=True)
        keys = [make_keys([image.content], [view]) for image, view in pairs]
        if finite.any():
            self._store.append(np.concatenate(keys)[finite], rows.values[finite], remaining)
        if not finite.all():
            image = rows.images[int(np.flatnonzero(~finite)[0])]
            raise BackboneError(
                f"the image tower of {self._model} gives values that are not finite (NaN or infinity) "
                f"for {name_of(self._sources[image.index], image.index)}; they are not stored. Check the backbone's "
                "weights."
            )
