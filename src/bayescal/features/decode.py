"""Images as pixels, read by threads or, where many cores have to feed a GPU, by a process per thread."""

import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayescal.data.image_memory import NoRoom, room
from bayescal.data.preprocess import Preprocess
from bayescal.data.sources import ImageSource, is_local_file
from bayescal.data.transforms import Transform
from bayescal.errors import BayescalError
from bayescal.features.decode_process import digests, fill

WORTH_PROCESSES = 1024  # images: below that, threads are done before processes have started
MOST_THREADS = 4  # more threads than this are no faster: they take turns
HASHES_PER_IMAGE = 16  # files are hashed in the time that one takes to be decoded and resized
_NO_PIXELS = Transform(Preprocess(1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bicubic", "squash"))


@dataclass(frozen=True)
class ImageRequest:
    """One distinct image, and the views of it that have to be computed."""

    index: int  # its first position in the list that was given
    source: ImageSource
    content: str  # hash
    views: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Views of some images, on their way through the model or behind it."""

    images: tuple[ImageRequest, ...]  # of each row
    views: tuple[int, ...]  # of each row
    values: np.ndarray  # pixels (n, size, size, 3) uint8, then features (n, D)
    problems: dict[int, str]  # images that could not be read: position → reason


Read = Callable[[list[ImageRequest]], Rows]


def read(group: list[ImageRequest], transform: Transform) -> Rows:
    """The pixels of some images, in this thread."""
    side = transform.how.size
    pixels = np.empty((sum(len(image.views) for image in group), side, side, 3), dtype=np.uint8)
    return _rows(group, pixels, fill(pixels, _wishes(group), transform))


def _wishes(group: list[ImageRequest]) -> list[tuple[ImageSource, str, tuple[int, ...]]]:
    return [(image.source, image.content, image.views) for image in group]


def _rows(group: list[ImageRequest], pixels: np.ndarray, problems: dict[int, str]) -> Rows:
    known = [image for i, image in enumerate(group) if i not in problems]
    images = tuple(image for image in known for _ in image.views)
    views = tuple(view for image in known for view in image.views)
    return Rows(images, views, pixels[: len(views)], {group[i].index: text for i, text in problems.items()})


@contextmanager
def readers(transform: Transform, capacity: int, total: int, workers: int) -> Iterator[Read]:
    """A function that reads a group of images for the thread that calls it.

    Where that pays, in a process of the thread's own; pixels are then in memory that the next call uses again. Images
    that are not files are read by the thread itself.
    """

    def read_one(group: list[ImageRequest]) -> Rows:
        fits = sum(len(image.views) for image in group) <= capacity
        if own is None or not fits or not all(is_local_file(image.source) for image in group):
            return read(group, transform)
        try:
            return own()(group)
        except NoRoom:  # for a process's part of the memory: here there is more
            return read(group, transform)

    with processes(transform, capacity, total, workers) as own:
        yield read_one


@contextmanager
def hashers(total: int, workers: int) -> Iterator[tuple[Callable[..., tuple[bytes, dict[int, str]]], int]]:
    """The function `digests` for the thread that calls it, and how many threads to call it from.

    Where that pays, it is called in a process of the thread's own.
    """

    def digests_of(sources: Sequence[ImageSource]) -> tuple[bytes, dict[int, str]]:
        if own is None or not all(is_local_file(source) for source in sources):
            return digests(sources)
        return own().ask("digests", list(sources))

    with processes(_NO_PIXELS, 1, total // HASHES_PER_IMAGE, workers) as own:
        yield digests_of, workers if own is not None else min(workers, MOST_THREADS)


@contextmanager
def processes(transform: Transform, capacity: int, total: int, workers: int) -> "Iterator[Callable[[], Reader] | None]":
    """A function that gives every thread a process of its own, or None where that does not pay.

    The processes end with the block.
    """
    if total < WORTH_PROCESSES or workers <= MOST_THREADS or not hasattr(os, "memfd_create"):
        yield None
        return
    own, share = threading.local(), room.limit() // workers
    started: list[Reader] = []

    def mine() -> Reader:
        if not hasattr(own, "reader"):
            own.reader = Reader(transform, capacity, share)
            started.append(own.reader)
        return own.reader

    try:
        yield mine
    finally:
        for one in started:
            one.close()


class Reader:
    """A process that reads images into memory shared with this one (`bayescal.features.decode_process`)."""

    def __init__(self, transform: Transform, capacity: int, room: int):
        side = transform.how.size
        descriptor = os.memfd_create("bayescal-pixels")
        try:
            os.ftruncate(descriptor, capacity * side * side * 3)
            memory = mmap.mmap(descriptor, capacity * side * side * 3)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bayescal.features.decode_process", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(descriptor,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            )
        finally:
            os.close(descriptor)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to_process, self.from_process = self.process.stdin, self.process.stdout
        self.pixels = np.frombuffer(memory, dtype=np.uint8).reshape(capacity, side, side, 3)
        self._send((transform, capacity, room))

    def __call__(self, group: list[ImageRequest]) -> Rows:
        """Pixels of a group; they are overwritten by the next call."""
        return _rows(group, self.pixels, self.ask("pixels", _wishes(group)))

    def ask(self, kind: str, images: list[Any]) -> Any:
        try:
            self._send((kind, images))
            answer = pickle.load(self.from_process)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code = self.process.wait()
            first, last = (image[0] if isinstance(image, tuple) else image for image in (images[0], images[-1]))
            raise BayescalError(
                f"a process that reads images ended (exit code {code}) while it had {first} … {last}. "
                "If memory ran out, fewer workers need less"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send(self, message: object) -> None:
        pickle.dump(message, self.to_process)
        self.to_process.flush()

    def close(self) -> None:
        for pipe in (self.to_process, self.from_process):
            try:
                pipe.close()
            except OSError:  # it is gone already
                continue
        self.process.wait()
