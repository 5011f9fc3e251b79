"""Work in threads with a bounded number of items in memory."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

from bayescal.util.cores import usable_cpus

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Cores this process may use, or fewer where the user limited torch's threads (OMP_NUM_THREADS)."""
    return max(1, min(usable_cpus(), torch.get_num_threads()))


@contextmanager
def worker_threads(n: int, torch_threads: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the block, also after an error or Ctrl-C: what has not begun is dropped.

    Inside each, torch uses `torch_threads` cores: several images at once, one core each, is faster than all cores
    on one batch, and far faster when something else runs on the machine.
    """
    mine = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        n,
        thread_name_prefix="bayescal-images",
        initializer=torch.set_num_threads,
        initargs=(torch_threads,),
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(mine)  # threads that are made later start with the last number set anywhere


def in_parallel(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """work(item) of all items in the order they get ready; at most `ahead` are begun, waiting or ready at any time.

    For each result that is taken another item is begun, so the threads have work while the caller is busy with it.
    """
    source = iter(items)
    running: set[Future[R]] = set()
    ready: set[Future[R]] = set()
    exhausted = False
    while True:
        while not exhausted and len(running) + len(ready) < ahead:
            try:
                running.add(pool.submit(work, next(source)))
            except StopIteration:
                exhausted = True
        if not ready:
            if not running:
                return
            ready, running = wait(running, return_when=FIRST_COMPLETED)
        yield ready.pop().result()
