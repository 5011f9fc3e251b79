"""How many of torch's threads a training uses: one where its steps are small, all where they are large.

Threads that share the products of a step wait for each other thousands of times a second. Beside busy processes each
wait may last until the other's turn is over: on two busy cores, steps took two threads 4 to 15 times as long as one
(`python -m speed.threads`, speed/README.md), where a second core alone could at best halve them. One thread does not
wait. Trainings with larger steps take so long on one core that all are used. Decided by counting, not by timing, so
that equal trainings give equal bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

LARGE_STEP = 1e11  # floating-point operations of a step (all runs of the stack) from which on all threads are used


@contextmanager
def threads_for(operations: float, device: torch.device) -> Iterator[int]:
    """Within the block, torch's threads for steps of so many operations: never more than it had before."""
    before = torch.get_num_threads()
    threads = 1 if device.type == "cpu" and operations < LARGE_STEP else before
    if threads == before:
        yield before
        return
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)
