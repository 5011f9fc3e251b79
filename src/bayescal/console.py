"""Where progress bars and messages go."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@lru_cache
def messages() -> "Console":
    """stderr, because stdout is for results; one console for all, so that a message never tears a progress bar."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def training_bar() -> "Progress":
    """A bar for trainings: what, how far, how long it took and how long it will; gone when it is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    columns += (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, console=messages(), transient=True)
