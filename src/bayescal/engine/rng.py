"""Random numbers as pure functions of (seed of the run, stream, step, index).

A run draws the same numbers alone or inside a stack, on CPU or GPU, before or after a resume, and no generator
state has to be stored. The mixing function is SplitMix64 (Steele, Lea & Flood 2014), which passes BigCrush.
"""

import hashlib
import math

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_C1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_C2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(z: Tensor, n: int) -> Tensor:
    """Logical right shift: torch's own is arithmetic on signed integers."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _C1
    z = (z ^ _shift(z, 27)) * _C2
    return z ^ _shift(z, 31)


def _wrapped(number: int) -> int:
    """As a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _stream_key(stream: str) -> int:
    return int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big", signed=True)


def bits(seeds: Tensor, stream: str, step: int | Tensor, n: int) -> Tensor:
    """64 random bits per entry: seeds (R,) → (R, n) int64."""
    # A plain number is wrapped around here: a tensor would have to be copied to the GPU, and waited for.
    offset = _wrapped(step * _GAMMA) if isinstance(step, int) else step * _GAMMA
    key = _mix(_mix(seeds ^ _stream_key(stream)) + offset)
    index = torch.arange(1, n + 1, device=seeds.device)
    return _mix(key[:, None] + index * _GAMMA)


def normal(seeds: Tensor, stream: str, step: int | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers: seeds (R,) → (R, *shape) float32, two from each 64 bits (Box–Muller)."""
    n = math.prod(shape)
    z = bits(seeds, stream, step, (n + 1) // 2)
    u = (_shift(z, 32).float() + 0.5) * 2.0**-32
    angle = (z & 0xFFFFFFFF).float() * (2.0 * math.pi * 2.0**-32)
    radius = torch.sqrt(-2.0 * torch.log(u.clamp(max=1.0)))
    both = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return both[:, :n].reshape(-1, *shape)


def integers(seeds: Tensor, stream: str, step: int | Tensor, n: int, high: int) -> Tensor:
    """Whole numbers in [0, high): seeds (R,) → (R, n) int64."""
    return _shift(bits(seeds, stream, step, n), 1) % high


def permutations(seeds: Tensor, stream: str, step: int | Tensor, n: int) -> Tensor:
    """One random order of 0 … n−1 per run: seeds (R,) → (R, n) int64."""
    return bits(seeds, stream, step, n).argsort(dim=1, stable=True)
