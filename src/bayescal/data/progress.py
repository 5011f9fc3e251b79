"""The bar over images that are made, checked or downloaded. Rich is imported only when a bar is wanted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayescal.console import messages

Advance = Callable[[int], None]  # called with the number of images (or bytes) that have been finished


@contextmanager
def progress_bar(title: str, total: int | None, show: bool, is_bytes: bool = False) -> Iterator[Advance]:
    """A bar on stderr, or nothing; `total` None: the end is not known."""
    if not show:
        yield lambda n: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)
