"""How long so many operations take here, roughly: for what is said before a long training begins."""

import time
from functools import lru_cache

import torch

from bayescal.engine.linear import linear

SIDE = 512  # of the matrices that are multiplied: as large as the products of trainings that take long
REPEATS = 5
SHARE = 0.6  # of the speed of products alone that a training reaches (norms, softmax, attention, Python)


def expected_seconds(operations: float, device: torch.device) -> float:
    """Seconds for floating-point operations that are mostly products of matrices; right within a factor of two."""
    return operations / (SHARE * _product_speed(device))


@lru_cache
def _product_speed(device: torch.device) -> float:
    """Operations per second in products of two matrices, the fastest of a few: what this machine can do now."""
    a = torch.rand(SIDE, SIDE, device=device)
    times = []
    for _ in range(REPEATS):
        _wait(device)
        started = time.perf_counter()
        linear(a, a)
        _wait(device)
        times.append(time.perf_counter() - started)
    return 2 * SIDE**3 / max(min(times), 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
