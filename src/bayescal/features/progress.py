"""The progress bar of feature extraction. Rich is imported only when a bar is wanted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayescal.console import messages

Advance = Callable[[int], None]  # called with the number of images that have been finished


@contextmanager
def progress_bar(show: bool, total: int, cached: int, unit: str) -> Iterator[Advance]:
    """A bar with the number from the cache and the speed, or nothing at all when there is nothing to do."""
    if not show or cached == total:
        yield lambda n: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("features"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn(f"{cached:,} from the cache"),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=messages()) as bar:
        task = bar.add_task("", total=total, completed=cached, speed="")
        done = 0

        def advance(n: int) -> None:
            nonlocal done
            done += n
            bar.update(task, advance=n, speed=f"{done / (time.monotonic() - started):,.0f} {unit}/s")

        yield advance
