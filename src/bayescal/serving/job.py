"""Long work in the background, one at a time, with its progress for whoever asks; it can be stopped."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bayescal.errors import BayescalError
from bayescal.util.progress import watched

State = Literal["running", "done", "failed", "stopped"]


class Stopped(Exception):
    """The user has had enough of it."""


@dataclass(frozen=True)
class Progress:
    """How far a job is; `result` is what it returned, `message` why it ended without."""

    number: int
    kind: str
    state: State = "running"
    title: str = "starting"
    done: float = 0.0
    total: float | None = None
    seconds: float = 0.0
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class Jobs:
    """Runs one job at a time in a thread of its own, which ends with the process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._number = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress: Progress | None = None  # of the last job

    @property
    def running(self) -> bool:
        return self.progress is not None and self.progress.state == "running"

    def start(self, kind: str, work: Callable[[], dict[str, Any]]) -> Progress:
        """Begin; an error if something is running already. What `work` shows in progress bars is its progress."""
        with self._mutex:
            if self.running:
                raise BayescalError("something is being learned already: wait until it is done, or stop it")
            self._number += 1
            self._stop.clear()
            self.progress = Progress(self._number, kind)
            self._thread = threading.Thread(target=self._run, args=(work,), name=kind, daemon=True)
            self._thread.start()
            return self.progress

    def stop(self) -> None:
        """Ask the job to end; it does at its next step."""
        self._stop.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of what is running."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, work: Callable[[], dict[str, Any]]) -> None:
        started = time.monotonic()

        def tell(title: str, done: float, total: float | None) -> None:
            if self._stop.is_set():
                raise Stopped
            self._update(title=title, done=done, total=total, seconds=time.monotonic() - started)

        try:
            with watched(tell):
                result = work()
            self._update(state="done", result=result, seconds=time.monotonic() - started)
        except Stopped:
            self._update(state="stopped", message="stopped; nothing was changed")
        except (BayescalError, OSError) as error:
            self._update(state="failed", message=str(error))
        except Exception as error:  # a bug: told to the user, and kept for whoever reads the log
            logging.getLogger("bayescal").exception("a job in the background failed")
            self._update(state="failed", message=f"this should not happen: {type(error).__name__}: {error}")

    def _update(self, **changes: Any) -> None:
        assert self.progress is not None
        self.progress = replace(self.progress, **changes)
