"""A bar over the steps of a training. Without Rich, or where nobody watches, nothing is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from bayescal.console import messages


class Watcher(Protocol):
    def step(self) -> None: ...

    def say(self, text: str) -> None: ...


class _Nobody:
    def step(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@contextmanager
def step_bar(title: str | None, total: int, done: int) -> Iterator[Watcher]:
    """`title` None: no bar. `done` steps of `total` lie behind a training that is continued."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        title = None
    if title is None:
        yield _Nobody()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    columns += (TimeRemainingColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done, said="")

        class Bar:
            def step(self) -> None:
                bar.advance(task)

            def say(self, text: str) -> None:
                bar.update(task, said=text)

        yield Bar()
