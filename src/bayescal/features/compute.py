"""From image files to rows of features: decode, transform, encode."""

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL.Image import Image

from bayescal.backbones.base import Backbone
from bayescal.data.images import ImageError, ImageSource, content_hash, read_image
from bayescal.features.pipeline import in_parallel, worker_threads

# Images per model call and core. More is not faster on a CPU; this keeps memory small and Ctrl-C quick.
_CPU_BATCH = 16
_HASHED_TOGETHER = 32  # files: one at a time, handing them to threads would take longer than hashing

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
    digests, problems = digest_all(sources, workers)
    return hex_of(digests, problems), problems


def digest_all(sources: Sequence[ImageSource], workers: int) -> tuple[np.ndarray, dict[int, str]]:
    """As `hash_all`, as bytes: (N, 32) uint8, zeros where there is none."""
    digests = np.zeros((len(sources), 32), dtype=np.uint8)
    problems: dict[int, str] = {}

    def digest(start: int) -> None:
        for i in range(start, min(start + _HASHED_TOGETHER, len(sources))):
            try:
                digests[i] = np.frombuffer(bytes.fromhex(content_hash(sources[i])), dtype=np.uint8)
            except ImageError as error:
                problems[i] = reason(error, sources[i])

    with worker_threads(workers) as pool:
        for _ in in_parallel(pool, digest, range(0, len(sources), _HASHED_TOGETHER), 2 * workers):
            pass
    return digests, problems


def hex_of(digests: np.ndarray, problems: Container[int]) -> list[str | None]:
    """Hashes (N, 32) as hexadecimal digits, None for those with a problem."""
    data = digests.tobytes().hex()
    return [None if i in problems else data[64 * i : 64 * i + 64] for i in range(len(digests))]


def compute(
    backbone: Backbone, images: Iterable[Wanted], total: int, pixels_of: PixelsOf, workers: int, batch_size: int
) -> Iterator[Rows]:
    """Features of all wanted views, `total` of them, a few rows at a time, in the order they get ready.

    On a CPU every thread takes images all the way from the file to the features. With an accelerator the threads
    decode, and this thread feeds the model.
    """
    if not total:
        return
    on_cpu = backbone.device.type == "cpu"
    size = min(_CPU_BATCH, batch_size, math.ceil(total / workers)) if on_cpu else batch_size
    threads = min(workers, math.ceil(total / size))
    pinned = _on_cuda(backbone)

    def work(group: list[Wanted]) -> Rows:
        rows = _decode(group, pixels_of)
        if on_cpu:
            return _encode(backbone, rows, size)
        return replace(rows, values=_pinned(rows.values)) if pinned else rows

    with worker_threads(threads, torch_threads=max(1, workers // threads)) as pool:
        ready = in_parallel(pool, work, _groups(images, size), ahead=threads + (1 if on_cpu else 2))
        yield from ready if on_cpu else _one_ahead(backbone, ready, size)


def _groups(images: Iterable[Wanted], size: int) -> Iterator[list[Wanted]]:
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
    return _begin(backbone, rows, size)()


def _one_ahead(backbone: Backbone, decoded: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Encode rows; the model has the next ones before these are handed on, so it never waits for who stores them."""
    finish: Callable[[], Rows] | None = None
    for rows in decoded:
        begun = _begin(backbone, rows, size)
        if finish is not None:
            yield finish()
        finish = begun
    if finish is not None:
        yield finish()


def _begin(backbone: Backbone, rows: Rows, size: int) -> Callable[[], Rows]:
    """Start to encode rows; the function that is returned waits for the result. CUDA works on in between."""
    parts = [torch.empty(0, backbone.dim)]
    in_between = _on_cuda(backbone)
    for at in range(0, len(rows.values), size):
        pixels = torch.from_numpy(rows.values[at : at + size]).permute(0, 3, 1, 2)
        if in_between:
            pixels = pixels.to(backbone.device, non_blocking=True)
        parts.append(backbone.encode_images(pixels).to("cpu", non_blocking=in_between))
    copied = torch.cuda.Event() if in_between else None
    if copied is not None:
        copied.record(torch.cuda.current_stream(backbone.device))

    def finish() -> Rows:
        if copied is not None:
            copied.synchronize()
        return replace(rows, values=torch.cat(parts).numpy())

    return finish


def _on_cuda(backbone: Backbone) -> bool:
    return backbone.device.type == "cuda" and torch.cuda.is_available()


def _pinned(pixels: np.ndarray) -> np.ndarray:
    """The same in memory from which CUDA can copy while this process does something else."""
    return torch.from_numpy(pixels).pin_memory().numpy() if pixels.size else pixels


def name_of(source: ImageSource, index: int) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {index} of the list"


def reason(error: ImageError, source: ImageSource) -> str:
    """What is wrong with an image, without its name in front."""
    text = str(error)
    return text.removeprefix(f"{os.fspath(source)}: ") if isinstance(source, str | os.PathLike) else text
