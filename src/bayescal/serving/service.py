"""From what a request brings to answers: decoding in a few threads, shared forward passes, a bounded queue."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np

from bayescal.data.images import read_bytes
from bayescal.data.sources import ImageError
from bayescal.estimator.answers import Answer, answers_of
from bayescal.serving.batches import Batches, Forward
from bayescal.serving.engine import Engine
from bayescal.serving.metrics import Metrics
from bayescal.serving.problems import busy
from bayescal.serving.settings import Settings
from bayescal.util.cores import usable_cpus

Upload = tuple[str, bytes]  # the name that the client gave, and the file
# A JPEG of a few megabytes could have thousands of scans, each as much work as a whole image.
_JPEG, _SCAN, _MOST_SCANS = b"\xff\xd8", b"\xff\xda", 100
_NO_MODEL = 30  # seconds after which there may be one
_MOST_DECODERS = 4  # each may hold a decoded image of `max_pixels`


class Service:
    """A model at work. One for each application; the page uses it as the API does.

    `engine` may be exchanged while requests are answered (`teach`), and is None before there is a model (`start`): a
    request takes it once, and is answered by that one from its first image to the names of the classes.
    """

    def __init__(self, engine: Engine | None, settings: Settings):
        self.engine, self.settings, self.metrics = engine, settings, Metrics()
        self._in_work = 0  # images and rows that were let in and are not answered
        self._decoders: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin to work: threads exist from here to `close`."""
        settings = self.settings
        self._decoders = ThreadPoolExecutor(min(_MOST_DECODERS, usable_cpus()), thread_name_prefix="bayescal-decode")
        self._images = Batches(settings.passes, settings.max_batch, settings.wait, self.metrics.pass_of)
        self._rows = Batches(1, settings.max_rows, 0.0, self.metrics.pass_of)

    def close(self) -> None:
        if self._decoders is not None:
            self._decoders.shutdown(wait=True, cancel_futures=True)
            self._images.close()
            self._rows.close()
            self._decoders = None

    @property
    def ready(self) -> bool:
        return self.engine is not None and self._decoders is not None

    def known_engine(self) -> Engine:
        """The engine, or why there is none."""
        engine = self.engine  # once: another thread may exchange it
        if engine is None:
            raise busy("There is no model yet: fit one, or start the server with the folder of one.", _NO_MODEL)
        return engine

    async def answer_images(self, engine: Engine, uploads: Sequence[Upload]) -> list[Answer]:
        """One answer per image, in their order; those that cannot be read say why."""
        with self._let_in(len(uploads)):
            loop = asyncio.get_running_loop()
            decoding = [
                loop.run_in_executor(self._decoders, self._decode, engine, name, data) for name, data in uploads
            ]
            decoded = await _all(decoding)
            read = [i for i, found in enumerate(decoded) if isinstance(found, np.ndarray)]
            answers = [
                Answer(name, reason="" if isinstance(found, np.ndarray) else found)
                for (name, _), found in zip(uploads, decoded, strict=True)
            ]
            if read:
                said = await self._images(_pass_of(engine, engine.predict_pixels), np.stack([decoded[i] for i in read]))
                for i, answer in zip(read, answers_of([uploads[i][0] for i in read], said), strict=True):
                    answers[i] = answer
        self.metrics.answers(answers)
        return answers

    async def answer_features(self, engine: Engine, features: np.ndarray) -> list[Answer]:
        """One answer per row of features (N, D)."""
        with self._let_in(1):
            said = await self._rows(_pass_of(engine, engine.predict_features), features)
        answers = answers_of([f"features {i}" for i in range(len(features))], said)
        self.metrics.answers(answers)
        return answers

    @contextmanager
    def _let_in(self, images: int) -> Iterator[None]:
        """A place in the queue, or the advice to come back."""
        if self._decoders is None:
            raise busy("The server is starting or stopping. Try again in a moment.")
        if self._in_work and self._in_work + images > self.settings.max_queue:
            raise busy(
                f"{self._in_work} images are waiting already, and at most {self.settings.max_queue} may. "
                "Try again in a moment."
            )
        self._in_work += images
        self.metrics.waiting.set(self._in_work)
        try:
            yield
        finally:
            self._in_work -= images
            self.metrics.waiting.set(self._in_work)

    def _decode(self, engine: Engine, name: str, data: bytes) -> np.ndarray | str:
        """Pixels for the engine, or why there are none; in a thread of its own."""
        if data.startswith(_JPEG) and data.count(_SCAN) > _MOST_SCANS:
            return f"{name}: has more scans than a camera or a program writes. Save it again."
        try:
            return engine.pixels(read_bytes(data, name, self.settings.max_pixels))
        except ImageError as error:
            return str(error)
        except MemoryError:
            return f"{name}: there is not enough memory to decode it. Make it smaller first."


def _pass_of(engine: Engine, predict: Forward) -> Forward:
    """What computes a request: the same for all of them, which then share passes, or where an answer would depend on
    the other requests' images, one of its own.
    """
    return partial(predict) if engine.answers_depend_on_batch else predict


async def _all(futures: "Sequence[asyncio.Future[np.ndarray | str]]") -> "list[np.ndarray | str]":
    """All results; when the caller gives up, what has not begun is not begun."""
    try:
        return list(await asyncio.gather(*futures))
    finally:
        for future in futures:
            future.cancel()
