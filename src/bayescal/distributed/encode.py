"""Images on a cluster: workers read, check and encode them; the cache is written by the process that asked."""

import os
import socket
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bayescal.backbones.base import Backbone, ImageEncoder
from bayescal.data.images import content_hash
from bayescal.data.remote import is_url
from bayescal.data.sources import ImageError
from bayescal.data.transforms import Transform
from bayescal.distributed.ray_cluster import Cluster, ClusterError
from bayescal.errors import DataError
from bayescal.features.decode import ImageRequest, Rows
from bayescal.features.extract import CPU_BATCH, compute, image_groups
from bayescal.features.threads import usable_cores

# Views in one task: enough to be worth sending, few enough to be worth losing. With a GPU, enough to be worth starting
# the processes that decode for it (`features/decode.py`).
LARGEST, LARGEST_ON_GPU = 1024, 16384

Found = tuple[list[int], list[int], np.ndarray, dict[int, str]]  # image of each row, its view, features, problems


@dataclass(eq=False)
class Encoding:
    """What a worker has to know to encode images."""

    backbone: Backbone
    transform: Transform
    batch_size: int

    def to(self, device: str) -> "Encoding":
        return replace(self, backbone=self.backbone.to(device))

    def __call__(self, images: list[ImageRequest]) -> Found:
        for image in images:
            _refuse_other(image)
        total = sum(len(image.views) for image in images)
        parts = list(compute(self.backbone, images, total, self.transform, usable_cores(), self.batch_size))
        values = [part.values for part in parts if len(part.values)] or [np.empty((0, self.backbone.dim), np.float32)]
        return (
            [image.index for part in parts for image in part.images],
            [view for part in parts for view in part.views],
            np.concatenate(values),
            {index: why for part in parts for index, why in part.problems.items()},
        )


@dataclass(frozen=True, eq=False)
class ClusterEncoder:
    """An `Encoder` of a `FeatureBank`: as `features.extract.compute`, on the workers of a cluster."""

    cluster: Cluster

    def __call__(
        self,
        backbone: ImageEncoder,
        images: Iterable[ImageRequest],
        total: int,
        transform: Transform,
        workers: int,
        batch_size: int,
    ) -> Generator[Rows, None, None]:
        """`workers` is about threads of this machine, and not used: each node has its own."""
        if not total:
            return
        if not isinstance(backbone, Backbone):
            raise ClusterError(f"{backbone.name}: a cluster encodes with backbones, not with models trained end to end")
        cluster, work = self.cluster, Encoding(backbone.to("cpu"), transform, batch_size)
        # The same batches as on one machine, as far as they can be: rounding depends on the size of a batch.
        batch = min(CPU_BATCH, batch_size) if cluster.device == "cpu" else batch_size
        largest = LARGEST if cluster.device == "cpu" else LARGEST_ON_GPU
        parts = _parts(images, batch, min(largest, cluster.share(total)))
        for part, (indices, views, values, problems) in cluster.scatter(work, parts):
            by_index = {image.index: image for image in part}
            yield Rows(tuple(by_index[i] for i in indices), tuple(views), values, problems)


def _parts(images: Iterable[ImageRequest], batch: int, size: int) -> Iterator[list[ImageRequest]]:
    """Whole batches that add up to `size` views or more."""
    part: list[ImageRequest] = []
    for group in image_groups(map(_whole_name, images), batch):
        part += group
        if sum(len(image.views) for image in part) >= size:
            yield part
            part = []
    if part:
        yield part


def _whole_name(image: ImageRequest) -> ImageRequest:
    """A worker starts in another folder."""
    if not isinstance(image.source, str | os.PathLike) or is_url(os.fspath(image.source)):
        return image
    return replace(image, source=os.path.abspath(image.source))


def _refuse_other(image: ImageRequest) -> None:
    """The worker must see the very files: features are kept under what the image is, not where it lies."""
    if not isinstance(image.source, str | os.PathLike):
        return
    try:
        found = content_hash(image.source)
    except ImageError as error:
        raise DataError(
            f"{str(error).rstrip('.')}. {socket.gethostname()} has to reach the images under the same path as the "
            "machine that asked: mount the same folder on every node"
        ) from error
    if found != image.content:
        raise DataError(
            f"{image.source}: is another file on {socket.gethostname()} than on the machine that asked. Mount the same "
            "folder on every node"
        )
