"""Options that say how folders and lists are to be read, and the question where they can be read in two ways."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bayescal.data import Manifest, Reading
    from bayescal.data.layout import UnclearLayout

_PANEL = "Images and names"
DATA_HELP = (
    "A folder, archive or URL of images in folders ENVIRONMENT/CLASS, CLASS, SPLIT/CLASS …, or a list of images: CSV, "
    "XLSX or JSON with path, class, environment, split."
)
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)]
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDERS",
        help="What the folders mean, from the top: environment/class, class, split/class, */class … Else found out.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
ClassFromName = Annotated[
    bool,
    typer.Option("--class-from-name", help="The class is in the files' names: airport_01.jpg.", rich_help_panel=_PANEL),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="OURS=THEIRS",
        help="What the columns of a list are called: class=label,path=filename.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def read_data(
    data: str | os.PathLike[str],
    reading: "Reading",
    class_words: Mapping[str, str] | None = None,
    environment_words: Mapping[str, str] | None = None,
) -> "Manifest":
    """The images; where folders can be read in two ways and somebody sits at the terminal, she is asked."""
    from bayescal.data.layout import UnclearLayout

    try:
        return reading.read(data, class_words, environment_words)
    except UnclearLayout as unclear:
        if not unclear.readings or not in_terminal():
            raise
        return replace(reading, layout=_ask(unclear)).read(data, class_words, environment_words)


def read_aloud(data: str | os.PathLike[str], reading: "Reading") -> "Manifest":
    """As `read_data`, and on stderr how they were read."""
    from bayescal.cli.screen import near, tell

    manifest = read_data(data, reading)
    tell(f"{near(data)}: read as {manifest.understood}.")
    return manifest


def in_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(unclear: "UnclearLayout") -> str:
    from bayescal.cli.screen import tell

    tell(unclear.problem)
    for number, (layout, said) in enumerate(unclear.readings, start=1):
        tell(f"  {number}  {layout}: {said}")
    numbers = range(1, len(unclear.readings) + 1)
    answer = typer.prompt("Which one", default=1, type=int, err=True)
    if answer not in numbers:
        raise unclear
    layout, _ = unclear.readings[answer - 1]
    tell(f"To be asked no more: {layout.option}")
    return "/".join(layout.levels) or "image"
