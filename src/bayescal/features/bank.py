"""`FeatureBank`: images → features of a frozen backbone, computed once and kept on disk."""

import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bayescal.backbones.base import ImageEncoder
from bayescal.data.sources import ImageSource
from bayescal.data.transforms import Transform
from bayescal.features.cache_folder import AUTO, cache_folder
from bayescal.features.content_index import ContentIndex
from bayescal.features.decode import ImageRequest, Rows
from bayescal.features.extract import compute, undecodable
from bayescal.features.feature_rows import Failure, FeatureRows, describe_failures
from bayescal.features.memory_rows import CacheOrMemory, MemoryRows, Store
from bayescal.features.threads import usable_cores

# Part of the folder's name: raise the number when the transform changes, and old features are not found any more.
_PLAIN, _VIEWS = "plain-1", "views-1"


class Encoder(Protocol):
    """What computes the features that the cache does not have: `extract.compute` here, or something elsewhere."""

    def __call__(
        self,
        backbone: ImageEncoder,
        images: Iterable[ImageRequest],
        total: int,
        transform: Transform,
        workers: int,
        batch_size: int,
        /,
    ) -> Generator[Rows, None, None]: ...


@dataclass(frozen=True)
class Encoded:
    """Features of a list of images, row by row in the order given."""

    features: Tensor  # (N, D), or (N, V, D) for views; float32 on the CPU, NaN in the rows of failures
    hashes: tuple[str | None, ...]  # SHA-256 of each image's content, None where it could not be read
    failures: tuple[Failure, ...]
    computed: int  # rows that went through the model; the others came from the cache or were duplicates

    def describe_failures(self, what: str = "could not be read and were left out", shown: int = 3) -> str:
        """How many images could not be read, and the first of them with the reason."""
        return describe_failures(self.failures, len(self.hashes), what, shown)


class FeatureBank:
    """Features of images under one backbone, from the cache where it has them, else computed and added to it.

    A row is found by the content of the image, the fingerprint of the backbone and the transform, so renamed
    and moved images are found again and nothing is ever stale. Several processes may use one folder at the
    same time; a killed one keeps every row that it finished.

    Parameters
    ----------
    backbone : Backbone
        The model that encodes (`load_backbone`).
    folder : path, optional
        Of the cache; "auto": $BAYESCAL_CACHE, or `bayescal` in the user's cache folder; None: no cache. One that cannot
        be written to is a warning, and features stay in memory.
    workers : int, optional
        Threads; None: one per usable core.
    batch_size : int
        Images per call of the model on an accelerator.
    encoder : callable, optional
        Encodes the images that the cache does not have; by default this process does.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from bayescal import FeatureBank, load_backbone
    >>> backbone = load_backbone("mini")
    >>> bank = FeatureBank(backbone, tempfile.mkdtemp())  # without a folder: the user's cache
    >>> images = [np.full((32, 32, 3), brightness, dtype="uint8") for brightness in (10, 120, 240)]
    >>> encoded = bank.encode(images)  # paths and PIL images do as well
    >>> encoded.features.shape == (3, backbone.dim), encoded.computed
    (True, 3)
    >>> bank.encode(images[1:]).computed  # the others came from the cache
    0
    """

    def __init__(
        self,
        backbone: ImageEncoder,
        folder: str | os.PathLike[str] | None = AUTO,
        workers: int | None = None,
        batch_size: int = 64,
        encoder: Encoder = compute,
    ):
        self.backbone = backbone
        self.folder = cache_folder(folder)
        self.workers = workers or usable_cores()
        self.batch_size = batch_size
        self.encoder = encoder
        self._stores: dict[str, Store] = {}

    def encode(
        self, sources: Sequence[ImageSource], *, progress: bool = False, contents: ContentIndex | None = None
    ) -> Encoded:
        """Features (N, D) under the test transform. Unreadable images end in `failures`; nothing is raised.

        `contents`: of these images, where they have been hashed already.
        """
        return _all_of(self.rows(sources, progress=progress, contents=contents))

    def encode_views(
        self,
        sources: Sequence[ImageSource],
        views: int,
        *,
        progress: bool = False,
        contents: ContentIndex | None = None,
    ) -> Encoded:
        """Features (N, V, D) of views 0 … V−1: random-resized crop and mirroring, the same in every run."""
        return _all_of(self.rows(sources, views, progress=progress, contents=contents))

    def rows(
        self,
        sources: Sequence[ImageSource],
        views: int | None = None,
        *,
        progress: bool = False,
        contents: ContentIndex | None = None,
    ) -> FeatureRows:
        """As `encode`, or with `views` as `encode_views`, but features stay on disk: `.read(indices)` gives some."""
        transform = Transform(self.backbone.preprocess, augmented=views is not None)

        def features_of(images: Iterable[ImageRequest], total: int) -> Generator[Rows, None, None]:
            return self.encoder(self.backbone, images, total, transform, self.workers, self.batch_size)

        store = self._store(_PLAIN if views is None else _VIEWS)
        contents = contents or self.contents(sources, progress=progress)
        return FeatureRows(sources, contents, views, store, features_of, self.backbone.name, progress)

    def contents(self, sources: Sequence[ImageSource], *, progress: bool = False) -> ContentIndex:
        """What images are, by content; the cache remembers it of what lies behind URLs."""
        return ContentIndex.of(sources, self.workers, self.folder, progress)

    def undecodable(self, sources: Sequence[ImageSource], contents: ContentIndex) -> dict[int, str]:
        """Which images cannot be read, and why, by position of one of each content. Nothing is encoded."""
        wanted = (ImageRequest(i, contents.held(i) or sources[i], "", (0,)) for i in contents.distinct.tolist())
        return undecodable(wanted, len(contents), Transform(self.backbone.preprocess), self.workers)

    def _store(self, transform: str) -> Store:
        if transform not in self._stores and self.folder is None:
            self._stores[transform] = MemoryRows(self.backbone.dim)
        elif transform not in self._stores and self.folder is not None:
            about = {"fingerprint": self.backbone.fingerprint, "transform": transform}
            folder = self.folder / "features" / f"{self.backbone.fingerprint}-{transform}"
            self._stores[transform] = CacheOrMemory(folder, self.backbone.dim, about)
        return self._stores[transform]


def _all_of(rows: FeatureRows) -> Encoded:
    features = rows.read()  # first: what is damaged is computed again here
    return Encoded(features, tuple(rows.contents.hexes()), rows.failures, rows.computed)
