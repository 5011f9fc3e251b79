"""What training sends to the workers of a cluster: features as arrays, and nothing that only images need.

An array is put into the memory of a node once, and all workers of that node read it there; a tensor would be copied
into each of them. What a caller sends besides a `Problem` says itself how it travels (`Portable`).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from bayescal.backbones.base import Backbone
from bayescal.training.problem import Problem

_TENSORS = ("features", "views", "labels", "environments", "view_rows")


class Packed(Protocol):
    """Something as it travels."""

    def unpacked(self, device: str) -> Any:
        """As it was before, on the device of a worker."""
        ...


@runtime_checkable
class Portable(Protocol):
    """Something that changes its form before it is sent."""

    def packed(self) -> Packed: ...


@dataclass(frozen=True, eq=False)
class Unchanged:
    """Something that is sent as it is."""

    value: Any

    def unpacked(self, device: str) -> Any:
        return self.value


def pack(value: Any) -> Packed:
    return value.packed() if isinstance(value, Portable) else Unchanged(value)


@dataclass(frozen=True, eq=False)
class PackedProblem:
    """A problem as it travels: `rest` is the problem without its tensors, which are `arrays`."""

    rest: Problem
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, problem: Problem) -> "PackedProblem":
        if problem.features.device.type != "cpu":
            raise ValueError("with a cluster, the process that asks keeps its features on the CPU; workers move them")
        arrays = {name: getattr(problem, name).numpy() for name in _TENSORS if getattr(problem, name) is not None}
        nothing: dict[str, Any] = dict.fromkeys(_TENSORS)
        return cls(replace(problem, tokenize=_without_images(problem.tokenize), **nothing), arrays)

    def unpacked(self, device: str) -> Problem:
        tensors: dict[str, Any] = {name: _tensor(array).to(device) for name, array in self.arrays.items()}
        return replace(self.rest, text=self.rest.text.to(device), **tensors)


def _without_images(tokenize: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """A backbone's own `tokenize` holds the backbone; the image tower can stay."""
    owner = getattr(tokenize, "__self__", None)
    return replace(owner, visual=None).tokenize if isinstance(owner, Backbone) else tokenize


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Without a copy. The memory is shared and cannot be written to, which torch warns of; nothing here does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
