"""`FeatureBank`: images → features of a frozen backbone, computed once and kept on disk."""

import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.data.images import ImageError, ImageSource, content_hash, read_image
from bayescal.errors import BackboneError, BayescalWarning
from bayescal.features.pipeline import prefetch, worker_threads
from bayescal.features.progress import progress_bar
from bayescal.features.store import RowStore, make_keys
from bayescal.features.transforms import plain_pixels, view_pixels

_AHEAD = 3  # batches of decoded images in memory while the model works on one
_HASHES_AHEAD = 256  # images being hashed before their turn


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


@dataclass(frozen=True)
class _Image:
    """One distinct image of a request."""

    index: int  # its first position in the list
    source: ImageSource
    content: str  # hash
    missing: tuple[int, ...]  # views that have to be computed


@dataclass(frozen=True)
class _Row:
    """One view on its way to the model."""

    image: _Image
    view: int
    pixels: np.ndarray  # (size, size, 3)


_PixelsOf = Callable[[Image.Image, str, int], np.ndarray]  # picture, content hash, view


def default_folder() -> Path:
    """$BAYESCAL_CACHE, or `bayescal` in the user's cache folder."""
    if chosen := os.environ.get("BAYESCAL_CACHE"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "bayescal" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bayescal"


class FeatureBank:
    """Features of images under one backbone, from the cache where it has them, else computed and added to it.

    A row is found by the content of the image, the fingerprint of the backbone and the transform, so renamed and
    moved images are found again and nothing is ever stale. Several processes may use one folder at the same time;
    a killed one leaves every finished row in place.
    """

    def __init__(
        self,
        backbone: Backbone,
        folder: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        batch_size: int = 64,
    ):
        self.backbone = backbone
        self.folder = Path(folder) if folder is not None else default_folder()
        self.workers = workers or min(8, os.cpu_count() or 1)
        self.batch_size = batch_size
        self._stores: dict[str, RowStore] = {}

    def encode(self, sources: Sequence[ImageSource], *, progress: bool = False) -> Encoded:
        """Features (N, D) under the test transform. Unreadable images are listed in `failures`, not raised."""
        how = self.backbone.preprocess
        encoded = self._encode(sources, "plain-1", 1, lambda image, content, view: plain_pixels(image, how), progress)
        return replace(encoded, features=encoded.features[:, 0])

    def encode_views(self, sources: Sequence[ImageSource], views: int, *, progress: bool = False) -> Encoded:
        """Features (N, V, D) of views 0 … V−1: random-resized crop and mirroring, the same in every run."""
        how = self.backbone.preprocess
        return self._encode(
            sources,
            "views-1",
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
        self, sources: Sequence[ImageSource], transform: str, views: int, pixels_of: _PixelsOf, progress: bool
    ) -> Encoded:
        store = self._store(transform)
        out = np.full((len(sources), views, self.backbone.dim), np.nan, dtype=np.float32)
        with worker_threads(self.workers) as pool:
            hashes, problems = _hash_all(pool, sources)
            first = {content: i for i, content in reversed(list(enumerate(hashes))) if content is not None}
            images = [
                _Image(i, sources[i], content, missing)
                for (content, i), missing in zip(first.items(), self._missing(store, first, views, out), strict=True)
            ]
            total, left = len(images) * views, sum(len(image.missing) for image in images)
            with progress_bar(progress, total, total - left, "views" if views > 1 else "images") as advance:
                rows = self._prepare(pool, images, pixels_of, problems)
                computed = 0
                while batch := list(itertools.islice(rows, self.batch_size)):
                    computed += len(batch)
                    self._compute(store, batch, out, sources, remaining=left - computed)
                    advance(len(batch))
        _copy_to_duplicates(out, hashes, first, problems)
        failures = tuple(Failure(i, _name(sources[i], i), problems[i]) for i in sorted(problems))
        return Encoded(torch.from_numpy(out), tuple(hashes), failures, computed)

    def _missing(
        self, store: RowStore, first: dict[str, int], views: int, out: np.ndarray
    ) -> Iterator[tuple[int, ...]]:
        """Fill `out` with what the cache has; for each distinct image, the views that it does not have."""
        rows = out.reshape(-1, out.shape[-1])
        at = np.fromiter((i * views + v for i in first.values() for v in range(views)), dtype=np.int64)
        found, damaged = store.read(make_keys(list(first), range(views)), rows, at)
        if damaged:
            warnings.warn(
                f"{damaged} damaged rows in the feature cache {store.folder} are computed again",
                BayescalWarning,
                stacklevel=5,
            )
        for have in found.reshape(len(first), views):
            yield tuple(np.flatnonzero(~have).tolist())

    def _prepare(
        self, pool: ThreadPoolExecutor, images: list[_Image], pixels_of: _PixelsOf, problems: dict[int, str]
    ) -> Iterator[_Row]:
        """Decode and transform in the pool; images that cannot be read are noted in `problems` and left out."""

        def pixels(image: _Image) -> list[np.ndarray] | ImageError:
            try:
                picture = read_image(image.source)
            except ImageError as error:
                return error
            return [pixels_of(picture, image.content, view) for view in image.missing]

        todo = (image for image in images if image.missing)
        ahead = _AHEAD * self.batch_size
        for image, result in prefetch(pool, pixels, todo, ahead, size=lambda image: len(image.missing)):
            if isinstance(result, ImageError):
                problems[image.index] = _reason(result, image.source)
            else:
                yield from map(_Row, itertools.repeat(image), image.missing, result)

    def _compute(
        self,
        store: RowStore,
        batch: list[_Row],
        out: np.ndarray,
        sources: Sequence[ImageSource],
        remaining: int,
    ) -> None:
        """Encode a batch, add it to the cache and to `out`."""
        pixels = torch.from_numpy(np.stack([row.pixels for row in batch])).permute(0, 3, 1, 2)
        features = self.backbone.encode_images(pixels).cpu().numpy()
        keys = np.concatenate([make_keys([row.image.content], [row.view]) for row in batch])
        finite = np.isfinite(features).all(axis=1)
        store.append(keys[finite], features[finite], remaining)
        if not finite.all():
            at = batch[int(np.flatnonzero(~finite)[0])].image.index
            raise BackboneError(
                f"the image tower of {self.backbone.name} gives values that are not finite (NaN or infinity) for "
                f"{_name(sources[at], at)}; such features are not stored. Check the backbone's weights."
            )
        for row, feature in zip(batch, features, strict=True):
            out[row.image.index, row.view] = feature


def _hash_all(pool: ThreadPoolExecutor, sources: Sequence[ImageSource]) -> tuple[list[str | None], dict[int, str]]:
    """The content hash of every image, and why there is none: by position."""

    def digest(source: ImageSource) -> str | ImageError:
        try:
            return content_hash(source)
        except ImageError as error:
            return error

    hashes: list[str | None] = []
    problems: dict[int, str] = {}
    for i, (source, result) in enumerate(prefetch(pool, digest, sources, ahead=_HASHES_AHEAD)):
        if isinstance(result, ImageError):
            problems[i] = _reason(result, source)
            hashes.append(None)
        else:
            hashes.append(result)
    return hashes, problems


def _copy_to_duplicates(
    out: np.ndarray, hashes: Sequence[str | None], first: dict[str, int], problems: dict[int, str]
) -> None:
    for i, content in enumerate(hashes):
        if content is None or first[content] == i:
            continue
        out[i] = out[first[content]]
        if first[content] in problems:
            problems[i] = problems[first[content]]


def _name(source: ImageSource, index: int) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return f"image {index} of the list"


def _reason(error: ImageError, source: ImageSource) -> str:
    """What is wrong, without the name of the image in front."""
    text = str(error)
    return text.removeprefix(f"{os.fspath(source)}: ") if isinstance(source, str | os.PathLike) else text
