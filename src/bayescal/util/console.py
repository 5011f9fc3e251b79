"""Where progress bars and messages go."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@lru_cache
def messages() -> "Console":
    """stderr, because stdout is for results; one console for all, so that a message never tears a progress bar."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)
