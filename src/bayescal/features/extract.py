"""From image files to rows of features: decode, transform, encode."""

import math
import os
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayescal.backbones.base import ImageEncoder
from bayescal.data.sources import ImageSource
from bayescal.data.transforms import Transform, normalised
from bayescal.features.decode import ImageRequest, Rows, hashers, readers
from bayescal.features.fetched import Fetched
from bayescal.features.remote_hashes import RemoteHashes, digest_remote, is_remote
from bayescal.features.threads import in_parallel, worker_threads
from bayescal.util.progress import progress_bar

# Images per model call and core. More is not faster on a CPU; this keeps memory small and Ctrl-C quick.
CPU_BATCH = 16
_HASHED_TOGETHER = 32  # files: one at a time, handing them to threads would take longer than hashing
_MANY = 10_000  # files: fewer are hashed before anybody looks for a bar

Prepare = Callable[[np.ndarray], torch.Tensor]  # pixels (n, size, size, 3) uint8 → (n, 3, size, size) for the model


def hash_all(sources: Sequence[ImageSource], workers: int) -> tuple[list[str | None], dict[int, str]]:
    """The content hash of every image; where there is none, the reason by position."""
    digests, problems = digest_all(sources, workers)
    return hex_of(digests, problems), problems


def digest_all(
    sources: Sequence[ImageSource],
    workers: int,
    cache: Path | None = None,
    fetched: Fetched | None = None,
    progress: bool = False,
) -> tuple[np.ndarray, dict[int, str]]:
    """As `hash_all`, as bytes: (N, 32) uint8, zeros where there is none.

    Of what lies behind URLs, `cache` remembers the hashes and `fetched` is given what had to be fetched.
    """
    if any(map(is_remote, sources)):
        return digest_remote(sources, RemoteHashes(cache), fetched or Fetched(most=0), progress)
    found = np.zeros((len(sources), 32), dtype=np.uint8)
    problems: dict[int, str] = {}

    with (
        hashers(len(sources), workers) as (digests_of, threads),
        progress_bar("hashing" if progress and len(sources) > _MANY else None, len(sources), unit="images") as bar,
        worker_threads(threads) as pool,
    ):

        def digest(start: int) -> int:
            part = sources[start : start + _HASHED_TOGETHER]
            digests, wrong = digests_of(part)
            found[start : start + len(part)] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
            problems.update({start + i: why for i, why in wrong.items()})
            return len(part)

        for done in in_parallel(pool, digest, range(0, len(sources), _HASHED_TOGETHER), 2 * threads):
            bar.advance(done)
    return found, problems


def hex_of(digests: np.ndarray, problems: Container[int]) -> list[str | None]:
    """Hashes (N, 32) as hexadecimal digits, None for those with a problem."""
    data = digests.tobytes().hex()
    return [None if i in problems else data[64 * i : 64 * i + 64] for i in range(len(digests))]


def compute(
    backbone: ImageEncoder,
    images: Iterable[ImageRequest],
    total: int,
    transform: Transform,
    workers: int,
    batch_size: int,
) -> Generator[Rows, None, None]:
    """Features of all wanted views, `total` of them, a few rows at a time, in the order they get ready.

    On a CPU every thread takes images all the way from the file to the features. With an accelerator the threads, or
    processes of theirs, decode, and this thread feeds the model.
    """
    if not total:
        return
    on_cpu = backbone.device.type == "cpu"
    size = min(CPU_BATCH, batch_size, math.ceil(total / workers)) if on_cpu else batch_size
    threads = min(workers, math.ceil(total / size))
    prepare = _preparation(backbone)

    with (
        readers(transform, size, 0 if on_cpu else total, workers) as read,
        worker_threads(threads, torch_threads=max(1, workers // threads)) as pool,
    ):

        def work(group: list[ImageRequest]) -> Rows:
            rows = read(group)
            return _encode(backbone, rows, size, prepare) if on_cpu else replace(rows, values=_kept(rows.values))

        ready = in_parallel(pool, work, image_groups(images, size), ahead=threads + (1 if on_cpu else 2))
        yield from ready if on_cpu else _one_ahead(backbone, ready, size, prepare)


def undecodable(images: Iterable[ImageRequest], total: int, transform: Transform, workers: int) -> dict[int, str]:
    """Images that cannot be decoded, by their index, with the reason; what can be decoded is dropped."""
    problems: dict[int, str] = {}
    with readers(transform, CPU_BATCH, total, workers) as read, worker_threads(workers) as pool:
        for rows in in_parallel(pool, lambda group: read(group).problems, image_groups(images, CPU_BATCH), 2 * workers):
            problems |= rows
    return problems


def _preparation(backbone: ImageEncoder) -> Prepare:
    """What is done with pixels between the transform and the model, to the same bit on a CPU and on a GPU."""
    how = backbone.preprocess
    if not _on_cuda(backbone):
        return lambda pixels: torch.from_numpy(normalised(pixels, how)).permute(0, 3, 1, 2)
    # Divided by tensors: torch multiplies by the reciprocal of a number, which is not the same to the last bit.
    constants = ((255.0,) * 3, how.mean, how.std)
    whole, mean, std = (torch.tensor(values, device=backbone.device) for values in constants)

    def prepare(pixels: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(pixels).to(backbone.device, non_blocking=True).float()
        return x.div_(whole).sub_(mean).div_(std).permute(0, 3, 1, 2)

    return prepare


def image_groups(images: Iterable[ImageRequest], size: int) -> Iterator[list[ImageRequest]]:
    """Images whose views add up to about `size`; the views of an image stay together, so it is decoded once."""
    group: list[ImageRequest] = []
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


def _encode(backbone: ImageEncoder, rows: Rows, size: int, prepare: Prepare) -> Rows:
    return _begin(backbone, rows, size, prepare)()


def _one_ahead(backbone: ImageEncoder, decoded: Iterable[Rows], size: int, prepare: Prepare) -> Iterator[Rows]:
    """Encode rows; the model has the next ones before these are handed on, so it never waits for who stores them."""
    finish: Callable[[], Rows] | None = None
    for rows in decoded:
        begun = _begin(backbone, rows, size, prepare)
        if finish is not None:
            yield finish()
        finish = begun
    if finish is not None:
        yield finish()


def _begin(backbone: ImageEncoder, rows: Rows, size: int, prepare: Prepare) -> Callable[[], Rows]:
    """Start to encode rows; the function that is returned waits for the result. CUDA works on in between."""
    in_between = _on_cuda(backbone)
    parts = [torch.empty(0, backbone.dim)]
    for at in range(0, len(rows.values), size):
        features = backbone.encode_images(prepare(rows.values[at : at + size]))
        parts.append(features.to("cpu", non_blocking=in_between))
    copied = torch.cuda.Event() if in_between else None
    if copied is not None:
        copied.record(torch.cuda.current_stream(backbone.device))

    def finish() -> Rows:
        if copied is not None:
            copied.synchronize()
        return replace(rows, values=torch.cat(parts).numpy())

    return finish


def _on_cuda(backbone: ImageEncoder) -> bool:
    return backbone.device.type == "cuda" and torch.cuda.is_available()


def _kept(pixels: np.ndarray) -> np.ndarray:
    """The same in memory of its own; where there is CUDA, one that it can copy from while we do something else."""
    if not torch.cuda.is_available() or not pixels.size:
        return pixels.copy()
    return torch.from_numpy(pixels).pin_memory().numpy()


def name_of(source: ImageSource, index: int) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {index} of the list"
