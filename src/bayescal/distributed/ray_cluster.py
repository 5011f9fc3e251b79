"""Work shared out over a Ray cluster: parts as tasks, results as they come, what a dead worker had is begun again.

    work (once per worker) + parts ─► tasks ─► (part, result) in the order they finish

Everything that must not be lost stays with the process that asked: it hands out parts and keeps results, and a worker
knows neither the database nor the feature cache. Ray is an optional package and is imported when it is asked for.
"""

import logging
import math
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from bayescal import __version__
from bayescal.errors import BayescalError, BayescalWarning

ATTEMPTS = 4  # of a part whose worker dies under it
AHEAD = 2  # parts per worker that are on their way: the next one is there when one ends
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0  # without a single worker
REACH_SECONDS = 5.0

Part = TypeVar("Part")
Result = TypeVar("Result")
PartIn = TypeVar("PartIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class ClusterError(BayescalError):
    """A cluster that cannot be reached or used."""


class Work(Protocol[PartIn, ResultOut]):
    """What a worker needs to do a part. Sent once per worker process, so it may be large."""

    def to(self, device: str) -> Callable[[PartIn], ResultOut]:
        """What does a part, on the worker's device. Called once in every worker process, before the first part."""
        ...


class Cluster:
    """A connection to a Ray cluster. A worker is one CPU, or on `cuda` one GPU with its share of the CPUs."""

    def __init__(self, address: str = "auto", device: str = "cpu"):
        """`address`: HOST:PORT of the head, or "auto" for the cluster that this machine is a node of.

        `device` "auto": the cluster's GPUs where it has any.
        """
        self.ray = _connected(address)
        if device == "auto":
            device = "cuda" if self.ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"
        self.device = device
        if not self.workers:
            raise ClusterError(
                f"the cluster has no {'CPU' if device == 'cpu' else 'GPU'} for --device {device}; "
                f"it has {_described(self.ray.cluster_resources())}"
            )

    @property
    def workers(self) -> int:
        """How many parts can be worked on at once; nodes may come and go."""
        return int(self.ray.cluster_resources().get("CPU" if self.device == "cpu" else "GPU", 0))

    def share(self, items: int) -> int:
        """How many of these to put into a part, so that every worker has something to do."""
        return max(1, math.ceil(items / (AHEAD * max(1, self.workers))))

    def scatter(self, work: Work[Part, Result], parts: Iterable[Part]) -> Iterator[tuple[Part, Result]]:
        """Each part with its result, as they get ready. Parts are asked for when a worker can take one.

        An error of the work itself is raised here; a part whose worker died is begun again on another.
        """
        ray, parts = self.ray, iter(parts)
        shared = ray.put(work)
        again: deque[tuple[Part, int]] = deque()
        running: dict[Any, tuple[Part, int]] = {}
        alive = time.monotonic()
        try:
            while True:
                workers = self.workers
                alive = time.monotonic() if workers else alive
                while len(running) < AHEAD * max(1, workers):
                    part, attempt = again.popleft() if again else (next(parts, None), 1)
                    if part is None:
                        break
                    running[self._submit(shared, part)] = part, attempt
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                if time.monotonic() - alive > PATIENCE_SECONDS:
                    raise ClusterError(
                        f"no worker has been left in the cluster for {PATIENCE_SECONDS:.0f} s. What is finished is "
                        "kept: the same command continues"
                    )
                for ref in ready:
                    part, attempt = running.pop(ref)
                    try:
                        result = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise _cause(error) from error
                    except ray.exceptions.RayError as error:
                        _refuse_more(error, attempt)
                        again.append((part, attempt + 1))
                    else:
                        yield part, result
        finally:
            for ref in running:
                ray.cancel(ref, force=True)

    def _submit(self, shared: Any, part: Any) -> Any:
        have = self.ray.cluster_resources()
        cpus, gpus = 1, 0
        if self.device != "cpu":
            cpus, gpus = max(1, int(have.get("CPU", 1) // max(1, have.get("GPU", 1)))), 1
        # Tried again here and not by Ray: it would not count attempts across lost results, nor say what happened.
        task = self.ray.remote(_do).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD", name="bayescal"
        )
        return task.remote([shared], __version__, self.device, cpus, part)  # in a list: fetched once per worker


# --- in the worker ---------------------------------------------------------------------------------------------------

_held: dict[str, Callable[[Any], Any]] = {}  # the work this process has, by its reference: one at a time


def _do(shared: list[Any], version: str, device: str, threads: int, part: Any) -> Any:
    import ray
    import torch

    try:
        if version != __version__:
            raise ClusterError(f"has bayescal {__version__}, and {version} is at work: install the same one everywhere")
        torch.set_num_threads(threads)
        name = shared[0].hex()
        if name not in _held:
            _held.clear()
            work: Any = ray.get(shared[0])
            _held[name] = work.to(device)
        return _held[name](part)
    except BayescalError as error:
        raise type(error)(f"on the worker {socket.gethostname()}: {error}") from error


# --- connecting, and what can go wrong -------------------------------------------------------------------------------


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            'a cluster needs Ray, which is not installed: pip install "bayescal[ray]", on every node'
        ) from error

    if ray.is_initialized() and address in ("auto", ray.get_runtime_context().gcs_address):
        return ray
    if address != "auto":
        _refuse_unreachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError, TimeoutError) as error:
        if address == "auto":
            raise ClusterError(
                "there is no Ray cluster on this machine. Start one with `ray start --head`, join one with "
                "`ray start --address HOST:6379`, or give its address: --ray HOST:PORT"
            ) from error
        raise ClusterError(
            f"--ray {address}: cannot be used ({_first_line(error)}). This machine has to be a node as well: "
            f"`ray start --address {address} --num-cpus 0`"
        ) from error
    return ray


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for a minute and then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"--ray {address}: expected HOST:PORT (6379 unless chosen otherwise) or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--ray {address}: nothing answers there ({error}). `ray status` on the head says whether it runs"
        ) from error


def _cause(error: Any) -> Exception:
    """What the work raised."""
    cause = error.cause
    if isinstance(cause, ImportError):
        return ClusterError(
            f"on a worker: {_first_line(cause)}. Every node needs bayescal {__version__} and what it depends on"
        )
    return cause if isinstance(cause, BayescalError) else error


def _refuse_more(error: Exception, attempt: int) -> None:
    if attempt >= ATTEMPTS:
        raise ClusterError(
            f"the same part of the work ended its worker {attempt} times ({_first_line(error)}). If memory ran out, "
            "smaller stacks (--max-runs) need less. What is finished is kept: the same command continues"
        ) from error
    warnings.warn(
        f"a worker was lost ({type(error).__name__}); what it had not finished is begun again",
        BayescalWarning,
        stacklevel=3,
    )


def _described(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):.0f} CPUs and {resources.get('GPU', 0):.0f} GPUs"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
