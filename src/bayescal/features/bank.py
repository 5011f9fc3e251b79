"""`FeatureBank`: images → features of a frozen backbone, computed once and kept on disk."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.data.images import ImageSource
from bayescal.data.transforms import Transform
from bayescal.features.compute import compute
from bayescal.features.contents import Contents
from bayescal.features.pipeline import usable_cores
from bayescal.features.readers import Rows, Wanted
from bayescal.features.rows import Failure, FeatureRows
from bayescal.features.store import RowStore

if TYPE_CHECKING:
    from bayescal.cluster import Cluster

# Part of the folder's name: raise the number when the transform changes, and old features are not found any more.
_PLAIN, _VIEWS = "plain-1", "views-1"


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
        cluster: "Cluster | None" = None,
    ):
        """`workers`: threads, by default one per core. `batch_size`: images per model call on an accelerator.

        `cluster`: whose workers encode what the cache does not have; they need the image files under the same paths.
        """
        self.backbone = backbone
        self.folder = Path(folder) if folder is not None else default_folder()
        self.workers = workers or usable_cores()
        self.batch_size = batch_size
        self.cluster = cluster
        self._stores: dict[str, RowStore] = {}

    def encode(
        self, sources: Sequence[ImageSource], *, progress: bool = False, contents: Contents | None = None
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
        contents: Contents | None = None,
    ) -> Encoded:
        """Features (N, V, D) of views 0 … V−1: random-resized crop and mirroring, the same in every run."""
        return _all_of(self.rows(sources, views, progress=progress, contents=contents))

    def rows(
        self,
        sources: Sequence[ImageSource],
        views: int | None = None,
        *,
        progress: bool = False,
        contents: Contents | None = None,
    ) -> FeatureRows:
        """As `encode`, or with `views` as `encode_views`, but features stay on disk: `.read(indices)` gives some."""
        transform = Transform(self.backbone.preprocess, augmented=views is not None)

        def features_of(images: Iterable[Wanted], total: int) -> Iterator[Rows]:
            if self.cluster is None:
                return compute(self.backbone, images, total, transform, self.workers, self.batch_size)
            from bayescal.features.remote import compute_on

            return compute_on(self.cluster, self.backbone, images, total, transform, self.batch_size)

        store = self._store(_PLAIN if views is None else _VIEWS)
        contents = contents or Contents.of(sources, self.workers)
        return FeatureRows(sources, contents, views, store, features_of, self.backbone.name, progress)

    def _store(self, transform: str) -> RowStore:
        if transform not in self._stores:
            about = {"fingerprint": self.backbone.fingerprint, "transform": transform}
            folder = self.folder / "features" / f"{self.backbone.fingerprint}-{transform}"
            self._stores[transform] = RowStore(folder, self.backbone.dim, about)
        return self._stores[transform]


def _all_of(rows: FeatureRows) -> Encoded:
    features = rows.read()  # first: what is damaged is computed again here
    return Encoded(features, tuple(rows.contents.hexes()), rows.failures, rows.computed)
