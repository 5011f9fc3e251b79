"""CUDA graphs on the CPU: a recording knows addresses and not values, and refuses what a GPU would have to answer.

Every operation of a recorded call is noted with the very tensors it read and wrote. Played back, it is done again on
those tensors, whatever other tensors Python names have come to stand for; what was a Python number stays as it was.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescal.engine import cuda_graph
from bayescal.training import loop

aten = torch.ops.aten
# Answers that Python needs (a wait for the GPU), and numbers that come from Python's memory (a copy from the host).
REFUSED = {
    aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.repeat_interleave, aten.bincount, aten.allclose, aten.lift_fresh,
}  # fmt: skip
BY_INDEX = {aten.index, aten.index_put, aten.index_put_}  # where a mask takes the place of numbers, they are counted
READS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item, torch.Tensor.cpu}


class Device:
    """Says that it is a GPU."""

    type = "cuda"


class Stream:
    def __init__(self, cuda: "FakeCuda", name: str):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: "Stream") -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class NoAnswers(TorchFunctionMode):
    """Ways out of torch that no operation is called for."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func.__name__}")
        return func(*args, **(kwargs or {}))


class Graph(TorchDispatchMode):
    """`torch.cuda.CUDAGraph`: what was asked for, in its order."""

    def __init__(self, cuda: "FakeCuda"):
        super().__init__()
        self.cuda = cuda
        self.steps: list[tuple[Callable, tuple, dict, Any]] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        masked = func.overloadpacket in BY_INDEX and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if masked or func.overloadpacket in REFUSED:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}\nand so on")
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[position] if position < len(args) else kwargs[argument.name]
                for tensor in tree_leaves(written):
                    storage = tensor.untyped_storage()
                    self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, out))
        return out

    def undo(self) -> None:
        """Nothing is computed while a recording is made: all that was written into is as it was."""
        for storage, copy in self.before.values():
            storage.copy_(copy)

    @torch.no_grad()
    def replay(self) -> None:
        self.cuda.log.append("replay")
        for func, args, kwargs, recorded in self.steps:
            for old, new in zip(tree_leaves(recorded), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class FakeCuda:
    """Takes the place of the parts of `torch.cuda` that `cuda_graph.py` uses; `log` is what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.log: list[str] = []
        self.device = Device()
        self.current = Stream(self, "current")
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "Stream", lambda device: Stream(self, "side"))
        monkeypatch.setattr(cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(cuda, "stream", self.on)
        monkeypatch.setattr(cuda, "CUDAGraph", lambda: Graph(self))
        monkeypatch.setattr(cuda, "graph", self.capture)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def capture(self, graph: Graph, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"record on {stream.name}")
        try:
            with self.on(stream), NoAnswers(), graph:
                yield
        finally:
            graph.undo()

    def train_as_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let `loop.Steps` record its step."""
        monkeypatch.setattr(loop, "CudaGraphStep", lambda device, what: cuda_graph.CudaGraphStep(self.device, what))
