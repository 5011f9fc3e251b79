"""Micro-batching: rows of requests that come within milliseconds of each other share a forward pass."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields

import numpy as np

from bayescal.estimator.prediction import Prediction
from bayescal.util.trim_memory import give_back_memory

_TIDY = 16  # passes of a thread, whose batches differ in size: without, memory grows for thousands of requests

Forward = Callable[[np.ndarray], Prediction]  # rows (N, …) → what is said of them


class _Waiting:
    """Rows of one request, what computes them, and whom to tell."""

    def __init__(self, forward: Forward, rows: np.ndarray, loop: asyncio.AbstractEventLoop):
        self.forward, self.rows, self.loop = forward, rows, loop
        self.since = time.monotonic()
        self.answer: asyncio.Future[Prediction] = loop.create_future()

    def tell(self, result: "Prediction | BaseException") -> None:
        """From any thread; nobody listens any more when the client has gone."""

        def deliver() -> None:
            if self.answer.done():
                return
            if isinstance(result, BaseException):
                self.answer.set_exception(result)
            else:
                self.answer.set_result(result)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver)


class Batches:
    """Threads that take what has come in and compute it together: at most `most` rows in a pass.

    A pass begins when it is full or its first rows have waited for `wait` seconds; while all threads compute, rows
    gather. Rows of one request are never torn apart, so a request must not have more than `most`. Each request says
    what computes it, and shares a pass with those that say the same: a model may be exchanged while requests wait.
    """

    def __init__(self, threads: int, most: int, wait: float, watch: Callable[[int], None] = lambda rows: None):
        self._most, self._wait, self._watch = most, wait, watch
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"bayescal-pass-{i}") for i in range(threads)]
        for thread in self._threads:
            thread.daemon = True  # a pass that hangs must not keep the process alive
            thread.start()

    async def __call__(self, forward: Forward, rows: np.ndarray) -> Prediction:
        """What is said of rows (N, …); those of a large request are computed `most` at a time."""
        loop = asyncio.get_running_loop()
        parts = [_Waiting(forward, rows[at : at + self._most], loop) for at in range(0, len(rows), self._most)]
        with self._changed:
            self._queue.extend(parts)
            self._changed.notify_all()
        try:
            return joined([await part.answer for part in parts])
        finally:
            for part in parts:  # nobody waits for the others when one has failed or the client has gone
                part.answer.cancel()

    def close(self) -> None:
        """No further pass begins; those that run are waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        passes = 0
        while (batch := self._next()) is not None:
            if batch:
                self._answer(batch)
                passes += 1
                if passes % _TIDY == 0:
                    give_back_memory()

    def _next(self) -> list[_Waiting] | None:
        """The requests of the next pass; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if self._closed:
                return None
            until = self._queue[0].since + self._wait
            while self._rows() < self._most and (left := until - time.monotonic()) > 0 and self._queue:
                self._changed.wait(left)
            batch: list[_Waiting] = []
            rows = 0
            while self._queue and rows + len(self._queue[0].rows) <= self._most:
                if batch and self._queue[0].forward != batch[0].forward:
                    break
                one = self._queue.popleft()
                if not one.answer.done():  # a client that has gone
                    batch.append(one)
                    rows += len(one.rows)
            return batch

    def _rows(self) -> int:
        return sum(len(one.rows) for one in self._queue)

    def _answer(self, batch: list[_Waiting]) -> None:
        try:
            rows = np.concatenate([one.rows for one in batch]) if len(batch) > 1 else batch[0].rows
            self._watch(len(rows))
            said = batch[0].forward(rows)
        except BaseException as error:  # of one request or of all: each is told, and the thread lives on
            for one in batch:
                one.tell(error)
            return
        at = 0
        for one in batch:
            one.tell(part(said, at, at + len(one.rows)))
            at += len(one.rows)


def part(said: Prediction, start: int, stop: int) -> Prediction:
    """What is said of some of the images."""
    return Prediction(**{f.name: getattr(said, f.name)[start:stop] for f in fields(said)})


def joined(parts: list[Prediction]) -> Prediction:
    """What is said of several groups of images, in one."""
    if len(parts) == 1:
        return parts[0]
    return Prediction(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Prediction)})
