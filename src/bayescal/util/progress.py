"""The progress bar. Rich is imported only when a bar is wanted; without Rich, nothing is shown."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from bayescal.util.console import messages

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

Advance = Callable[[int], None]  # called with how much has been finished since the last call
Amount = Literal["count", "bytes", "percent"]  # "12/40", "3.1/8.0 MB", "30 %"
Watch = Callable[[str, float, float | None], None]  # called with title, what is done, and the end if it is known

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within the block, bars of this thread tell `watch` in place of the terminal; what it raises stops the work."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class Bar:
    """What the work tells a bar. This one shows nothing."""

    shown = False

    def advance(self, n: float = 1) -> None:
        """So much more is done."""

    def say(self, text: str) -> None:
        """Words behind the bar, in place of those that stood there."""

    def rename(self, title: str, total: float | None = None) -> None:
        """Another title and, unless None, another end."""


@contextmanager
def progress_bar(
    title: str | None,
    total: float | None,
    *,
    amount: Amount = "count",
    unit: str = "",
    speed: bool = False,
    done: float = 0,
    said: str = "",
    transient: bool = True,
) -> Iterator[Bar]:
    """A bar on stderr with the time left, gone when it is done (unless not `transient`); title None: no bar.

    `total` None: the end is not known. `done` of it lie behind work that is continued. `unit` stands after the amount,
    or with `speed` after the number finished per second.
    """
    if title is not None and (watch := _watch.get()) is not None:
        yield _WatchedBar(watch, title, total, done)
        return
    columns = _columns(amount, unit, speed) if title is not None else None
    if title is None or columns is None:
        yield Bar()
        return
    from rich.progress import Progress

    with Progress(*columns, console=messages(), transient=transient) as progress:
        task = progress.add_task(title, total=total, completed=int(done), said=said, speed="")
        yield _RichBar(progress, task, unit if speed else None)


class _WatchedBar(Bar):
    def __init__(self, watch: Watch, title: str, total: float | None, done: float):
        self._watch, self._title, self._total, self._done = watch, title, total, done
        watch(title, done, total)

    def advance(self, n: float = 1) -> None:
        self._done += n
        self._watch(self._title, self._done, self._total)

    def rename(self, title: str, total: float | None = None) -> None:
        self._title, self._total = title, self._total if total is None else total
        self._watch(self._title, self._done, self._total)


class _RichBar(Bar):
    shown = True

    def __init__(self, progress: "Progress", task: "TaskID", speed_unit: str | None):
        self._progress, self._task, self._speed_unit = progress, task, speed_unit
        self._started, self._done = time.monotonic(), 0.0

    def advance(self, n: float = 1) -> None:
        fields = {}
        if self._speed_unit is not None:
            self._done += n
            seconds = max(time.monotonic() - self._started, 1e-9)
            fields["speed"] = f"{self._done / seconds:,.0f} {self._speed_unit}/s"
        self._progress.update(self._task, advance=n, **fields)

    def say(self, text: str) -> None:
        self._progress.update(self._task, said=text)

    def rename(self, title: str, total: float | None = None) -> None:
        self._progress.update(self._task, description=title, total=total)


def _columns(amount: Amount, unit: str, speed: bool) -> "list[ProgressColumn] | None":
    """What stands in the line; None where Rich is not installed: training needs torch alone."""
    try:
        from rich import progress as rich
    except ImportError:
        return None
    amounts = {
        "count": rich.MofNCompleteColumn,
        "bytes": rich.DownloadColumn,
        "percent": lambda: rich.TextColumn("{task.percentage:>3.0f} %"),
    }
    columns = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), amounts[amount]()]
    if speed:
        columns.append(rich.TextColumn("{task.fields[speed]}"))
    elif unit:
        columns.append(rich.TextColumn(unit))
    columns.append(rich.TextColumn("{task.fields[said]}", markup=False))
    return [*columns, rich.TimeElapsedColumn(), rich.TextColumn("left"), rich.TimeRemainingColumn()]
