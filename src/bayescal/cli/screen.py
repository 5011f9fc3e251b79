"""What is printed where: results to stdout, everything said about the work to stderr."""

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 100  # columns of a table that goes into a file or a pipe, where nobody says how wide the screen is


def out() -> "Console":
    """Results. Nothing else may be printed here."""
    from bayescal.util.console import console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return console(width=None if known else PIPE_WIDTH)


class Screen:
    """stdout for results that other programs read (CSV, JSON): to the last letter, but a terminal obeys none of it."""

    def write(self, text: str) -> int:
        from bayescal.util.harmless import harmless

        return sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)

    def flush(self) -> None:
        sys.stdout.flush()


def emit(text: str) -> None:
    """Write a whole result at once."""
    Screen().write(text)
    sys.stdout.flush()


def err() -> "Console":
    """Messages. The same console that progress bars use, so that a message never tears one."""
    from bayescal.util.console import messages

    return messages()


def say(label: str, message: str, style: str) -> None:
    """A message to stderr with a coloured label, never wrapped: paths and commands can be copied out of it."""
    from rich.text import Text

    from bayescal.util.harmless import indented

    err().print(Text.assemble((f"{label}: ", style), indented(message)), soft_wrap=True)


def tell(message: str) -> None:
    """Something about the work that is neither a result nor a warning."""
    from bayescal.util.harmless import indented

    err().print(indented(message), soft_wrap=True)


def note(message: str) -> None:
    say("Note", message, "bold yellow")


def shows_progress(quiet: bool = False) -> bool:
    return sys.stderr.isatty() and not quiet


def plain_table(*columns: str, numbers: Sequence[str] = ()) -> "Table":
    """A table without lines; the columns in `numbers` are aligned to the right. A cell of text is one line."""
    from rich.box import SIMPLE_HEAD

    from bayescal.util.harmless import one_line

    table = _lines()(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(one_line(column), justify="right" if column in numbers else "left", overflow="fold")
    return table


@lru_cache
def _lines() -> "type[Table]":
    from rich.table import Table

    from bayescal.util.harmless import one_line

    class Lines(Table):
        def add_row(self, *cells: Any, **more: Any) -> None:
            super().add_row(*(one_line(cell) if isinstance(cell, str) else cell for cell in cells), **more)

    return Lines


def percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.1f} %"


def count(number: int, noun: str) -> str:
    """ "1 image", "1,234 images", "2 classes"."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def near(path: str | os.PathLike[str]) -> str:
    """A path as one would type it: relative where it lies below the current folder."""
    from bayescal.util.harmless import one_line

    if "://" in os.fspath(path):  # a URL
        return one_line(os.fspath(path))
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return one_line(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
