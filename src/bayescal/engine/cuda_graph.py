"""Work that repeats itself: on a GPU it is captured once, as a CUDA graph, and then played back.

The kernels of a training step are shorter than the time it takes Python to launch them one by one. Played back, they
are launched as one. A graph knows addresses and not values: whatever changes between two calls must be in tensors
that stay where they are, even the number of the step.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache

import torch

from bayescal.errors import BayescalWarning

WARM_UP = 2  # calls that are simply made, on the stream of the capture: libraries allocate and choose kernels in them


@cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """The stream of all captures of a thread: for each new stream, libraries would keep working memory for ever."""
    return torch.cuda.Stream(device)


class CudaGraphStep:
    """A function without arguments that reads and writes tensors in place, played back as a graph.

    The function is handed over at every call and not kept: what holds a graph is often what the function belongs to,
    and the memory of a graph should go when its owner goes.
    """

    def __init__(self, device: torch.device, what: str = "this"):
        self.device, self.what = device, what
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = _stream(device, threading.get_ident()) if device.type == "cuda" else None

    def __call__(self, function: Callable[[], None]) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.stream is None:
            function()
        elif self.calls < WARM_UP:
            self.calls += 1
            with self._on_stream(self.stream):
                function()
        else:
            self._capture(function)
            self(function)

    def _capture(self, function: Callable[[], None]) -> None:
        """Nothing is computed here: the graph is played by the caller. What cannot be captured is called."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            warnings.warn(
                f"{self.what} cannot be captured as a CUDA graph and goes on call by call, which is slower "
                f"({str(error).strip().splitlines()[0]})",
                BayescalWarning,
                stacklevel=4,
            )
            self.stream = None
        else:
            self.graph = graph

    @contextlib.contextmanager
    def _on_stream(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """On the stream of the capture, after what was asked for before and before what is asked for later."""
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)
