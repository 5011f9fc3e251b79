"""Decoding in threads while the model encodes, with a bounded number of images in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def worker_threads(n: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the block, also after an error or Ctrl-C: what has not begun is dropped."""
    pool = ThreadPoolExecutor(n, thread_name_prefix="bayescal-images")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prefetch(
    pool: ThreadPoolExecutor,
    work: Callable[[T], R],
    items: Iterable[T],
    ahead: int,
    size: Callable[[T], int] = lambda item: 1,
) -> Iterator[tuple[T, R]]:
    """(item, work(item)) in order, computed in the pool at most about `ahead` units before they are asked for.

    `size` says how many units the result of an item is; an item larger than `ahead` is still worked on.
    """
    source = iter(items)
    waiting: deque[tuple[T, Future[R]]] = deque()
    held = 0
    exhausted = False
    while True:
        while not exhausted and (held < ahead or not waiting):
            try:
                item = next(source)
            except StopIteration:
                exhausted = True
                break
            waiting.append((item, pool.submit(work, item)))
            held += size(item)
        if not waiting:
            return
        item, future = waiting.popleft()
        yield item, future.result()
        held -= size(item)
