"""From image files to rows of features: decode, transform, encode."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL.Image import Image

from bayescal.backbones.base import Backbone
from bayescal.data.images import ImageError, ImageSource, content_hash, read_image
from bayescal.features.pipeline import in_parallel, worker_threads

# Images per model call and core. More is not faster on a CPU; this keeps memory small and Ctrl-C quick.
_CPU_BATCH = 16
_HASHES_AHEAD = 256

PixelsOf = Callable[[Image, str, int], np.ndarray]  # picture, content hash, view → (size, size, 3)


@dataclass(frozen=True)
class Wanted:
    """One distinct image, and the views of it that have to be computed."""

    index: int  # its first position in the list that was given
    source: ImageSource
    content: str  # hash
    views: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Views of some images, on their way through the model or behind it."""

    images: tuple[Wanted, ...]  # of each row
    views: tuple[int, ...]  # of each row
    values: np.ndarray  # pixels (n, size, size, 3), then features (n, D)
    problems: dict[int, str]  # images that could not be read: position → reason


def hash_all(sources: Sequence[ImageSource], workers: int) -> tuple[list[str | None], dict[int, str]]:
    """The content hash of every image; where there is none, the reason by position."""

    def digest(i: int) -> tuple[int, str | None, str]:
        try:
            return i, content_hash(sources[i]), ""
        except ImageError as error:
            return i, None, reason(error, sources[i])

    hashes: list[str | None] = [None] * len(sources)
    problems: dict[int, str] = {}
    with worker_threads(workers) as pool:
        for i, found, problem in in_parallel(pool, digest, range(len(sources)), _HASHES_AHEAD):
            hashes[i] = found
            if found is None:
                problems[i] = problem
    return hashes, problems


def compute(
    backbone: Backbone, images: Sequence[Wanted], pixels_of: PixelsOf, workers: int, batch_size: int
) -> Iterator[Rows]:
    """Features of all wanted views, a few rows at a time, in the order they get ready.

    On a CPU every thread takes images all the way from the file to the features. With an accelerator the threads
    decode, and this thread feeds the model.
    """
    total = sum(len(image.views) for image in images)
    if not total:
        return
    on_cpu = backbone.device.type == "cpu"
    size = min(_CPU_BATCH, batch_size, math.ceil(total / workers)) if on_cpu else batch_size
    threads = min(workers, math.ceil(total / size))

    def work(group: list[Wanted]) -> Rows:
        rows = _decode(group, pixels_of)
        return _encode(backbone, rows, size) if on_cpu else rows

    with worker_threads(threads, torch_threads=max(1, workers // threads)) as pool:
        for rows in in_parallel(pool, work, _groups(images, size), ahead=threads + 1):
            yield rows if on_cpu else _encode(backbone, rows, size)


def _groups(images: Sequence[Wanted], size: int) -> Iterator[list[Wanted]]:
    """Images whose views add up to about `size`; the views of an image stay together, so it is decoded once."""
    group: list[Wanted] = []
    rows = 0
    for image in images:
        if group and rows + len(image.views) > size:
            yield group
            group, rows = [], 0
        if image.views:
            group.append(image)
            rows += len(image.views)
    if group:
        yield group


def _decode(group: list[Wanted], pixels_of: PixelsOf) -> Rows:
    images: list[Wanted] = []
    views: list[int] = []
    pixels: list[np.ndarray] = []
    problems: dict[int, str] = {}
    for image in group:
        try:
            picture = read_image(image.source)
        except ImageError as error:
            problems[image.index] = reason(error, image.source)
            continue
        for view in image.views:
            images.append(image)
            views.append(view)
            pixels.append(pixels_of(picture, image.content, view))
    values = np.stack(pixels) if pixels else np.empty((0, 0, 0, 3), dtype=np.float32)
    return Rows(tuple(images), tuple(views), values, problems)


def _encode(backbone: Backbone, rows: Rows, size: int) -> Rows:
    parts = [np.empty((0, backbone.dim), dtype=np.float32)]
    for at in range(0, len(rows.values), size):
        pixels = torch.from_numpy(rows.values[at : at + size]).permute(0, 3, 1, 2)
        parts.append(backbone.encode_images(pixels).cpu().numpy())
    return replace(rows, values=np.concatenate(parts))


def name_of(source: ImageSource, index: int) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {index} of the list"


def reason(error: ImageError, source: ImageSource) -> str:
    """What is wrong with an image, without its name in front."""
    text = str(error)
    return text.removeprefix(f"{os.fspath(source)}: ") if isinstance(source, str | os.PathLike) else text
