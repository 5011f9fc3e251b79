"""Where progress bars and messages go. Every console of the package is made here: it reads no markup, and what it is
given cannot drive the terminal (`util.harmless`).
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bayescal.util.harmless import OBEYED, harmless

if TYPE_CHECKING:
    from rich.console import Console


def console(**options: Any) -> "Console":
    """A console that prints what it is given and obeys none of it; options as of `rich.console.Console`."""
    return _kind()(**{"highlight": False, "markup": False, **options})


@lru_cache
def messages() -> "Console":
    """stderr, because stdout is for results; one console for all, so that a message never tears a progress bar."""
    return console(stderr=True)


@lru_cache
def _kind() -> "type[Console]":
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """What Rich itself sends to the terminal are control segments and styles; text is text."""

        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                safe = segment.control or not OBEYED.search(segment.text)
                yield segment if safe else Segment(harmless(segment.text), segment.style)

    return Harmless
