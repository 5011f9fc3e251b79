"""`FeatureBank`: images → features of a frozen backbone, computed once and kept on disk."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.data.images import ImageSource
from bayescal.errors import BackboneError, BayescalWarning
from bayescal.features.compute import PixelsOf, Rows, Wanted, compute, hash_all, name_of
from bayescal.features.pipeline import usable_cores
from bayescal.features.progress import progress_bar
from bayescal.features.store import RowStore, make_keys
from bayescal.features.transforms import plain_pixels, view_pixels

# Part of the folder's name: raise the number when the transform changes, and old features are not found any more.
_PLAIN, _VIEWS = "plain-1", "views-1"


@dataclass(frozen=True)
class Failure:
    """An image that could not be used."""

    index: int  # in the list that was given
    name: str
    reason: str


@dataclass(frozen=True)
class Encoded:
    """Features of a list of images, row by row in the order given."""

    features: Tensor  # (N, D), or (N, V, D) for views; float32 on the CPU, NaN in the rows of failures
    hashes: tuple[str | None, ...]  # SHA-256 of each image's content, None where it could not be read
    failures: tuple[Failure, ...]
    computed: int  # rows that went through the model; the others came from the cache or were duplicates

    def describe_failures(self, what: str = "could not be read and were left out", shown: int = 3) -> str:
        """How many images could not be read, and the first of them with the reason."""
        first = "; ".join(f"{failure.name}: {failure.reason.rstrip('.')}" for failure in self.failures[:shown])
        more = f"; and {len(self.failures) - shown} more" if len(self.failures) > shown else ""
        return f"{len(self.failures)} of {len(self.hashes)} images {what} ({first}{more})"


def default_folder() -> Path:
    """$BAYESCAL_CACHE, or `bayescal` in the user's cache folder."""
    if chosen := os.environ.get("BAYESCAL_CACHE"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "bayescal" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bayescal"


class FeatureBank:
    """Features of images under one backbone, from the cache where it has them, else computed and added to it.

    A row is found by the content of the image, the fingerprint of the backbone and the transform, so renamed
    and moved images are found again and nothing is ever stale. Several processes may use one folder at the
    same time; a killed one leaves every finished row in place.
    """

    def __init__(
        self,
        backbone: Backbone,
        folder: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        batch_size: int = 64,
    ):
        """`workers`: threads, by default one per core. `batch_size`: images per model call on an accelerator."""
        self.backbone = backbone
        self.folder = Path(folder) if folder is not None else default_folder()
        self.workers = workers or usable_cores()
        self.batch_size = batch_size
        self._stores: dict[str, RowStore] = {}

    def encode(self, sources: Sequence[ImageSource], *, progress: bool = False) -> Encoded:
        """Features (N, D) under the test transform. Unreadable images end in `failures`; nothing is raised."""
        how = self.backbone.preprocess
        encoded = self._encode(sources, _PLAIN, 1, lambda image, content, view: plain_pixels(image, how), progress)
        return replace(encoded, features=encoded.features[:, 0])

    def encode_views(self, sources: Sequence[ImageSource], views: int, *, progress: bool = False) -> Encoded:
        """Features (N, V, D) of views 0 … V−1: random-resized crop and mirroring, the same in every run."""
        how = self.backbone.preprocess
        return self._encode(
            sources,
            _VIEWS,
            views,
            lambda image, content, view: view_pixels(image, how, content, view),
            progress,
        )

    def _store(self, transform: str) -> RowStore:
        if transform not in self._stores:
            about = {"fingerprint": self.backbone.fingerprint, "transform": transform}
            folder = self.folder / "features" / f"{self.backbone.fingerprint}-{transform}"
            self._stores[transform] = RowStore(folder, self.backbone.dim, about)
        return self._stores[transform]

    def _encode(
        self,
        sources: Sequence[ImageSource],
        transform: str,
        views: int,
        pixels_of: PixelsOf,
        progress: bool,
    ) -> Encoded:
        store = self._store(transform)
        out = np.full((len(sources), views, self.backbone.dim), np.nan, dtype=np.float32)
        hashes, problems = hash_all(sources, self.workers)
        first: dict[str, int] = {}
        for i, content in enumerate(hashes):
            if content is not None:
                first.setdefault(content, i)
        missing = self._read(store, first, out)
        wanted = [Wanted(i, sources[i], content, next(missing)) for content, i in first.items()]
        total, left = len(wanted) * views, sum(len(image.views) for image in wanted)
        computed = 0
        with (
            progress_bar(progress, total, total - left, "views" if views > 1 else "images") as advance,
            closing(compute(self.backbone, wanted, pixels_of, self.workers, self.batch_size)) as results,
        ):
            for rows in results:
                computed += len(rows.views)
                problems |= rows.problems
                self._add(store, rows, out, remaining=left - computed)
                advance(len(rows.views) + views * len(rows.problems))
        _copy_to_duplicates(out, hashes, first, problems)
        failures = tuple(Failure(i, name_of(sources[i], i), problems[i]) for i in sorted(problems))
        return Encoded(torch.from_numpy(out), tuple(hashes), failures, computed)

    def _read(self, store: RowStore, first: dict[str, int], out: np.ndarray) -> Iterator[tuple[int, ...]]:
        """Fill `out` (N, V, D) from the cache; gives for each distinct image the views that are not there."""
        views = out.shape[1]
        at = np.repeat(np.fromiter(first.values(), dtype=np.int64), views) * views
        at += np.tile(np.arange(views), len(first))
        keys = make_keys(list(first), range(views))
        found, damaged = store.read(keys, out.reshape(-1, self.backbone.dim), at)
        if damaged:
            warnings.warn(
                f"{damaged} damaged rows in the feature cache {store.folder} are computed again",
                BayescalWarning,
                stacklevel=4,
            )
        return (tuple(np.flatnonzero(~have).tolist()) for have in found.reshape(len(first), views))

    def _add(self, store: RowStore, rows: Rows, out: np.ndarray, remaining: int) -> None:
        """Add finished rows to the cache and to `out`; values that are not finite go to neither."""
        finite = np.isfinite(rows.values).all(axis=1)
        pairs = zip(rows.images, rows.views, strict=True)
        keys = [make_keys([image.content], [view]) for image, view in pairs]
        if finite.any():
            store.append(np.concatenate(keys)[finite], rows.values[finite], remaining)
        if not finite.all():
            image = rows.images[int(np.flatnonzero(~finite)[0])]
            raise BackboneError(
                f"the image tower of {self.backbone.name} gives values that are not finite (NaN or infinity) "
                f"for {name_of(image.source, image.index)}; they are not stored. Check the backbone's weights."
            )
        for image, view, feature in zip(rows.images, rows.views, rows.values, strict=True):
            out[image.index, view] = feature


def _copy_to_duplicates(
    out: np.ndarray, hashes: Sequence[str | None], first: dict[str, int], problems: dict[int, str]
) -> None:
    for i, content in enumerate(hashes):
        if content is None or first[content] == i:
            continue
        out[i] = out[first[content]]
        if first[content] in problems:
            problems[i] = problems[first[content]]
