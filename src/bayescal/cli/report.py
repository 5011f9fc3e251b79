"""`bayescal report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import Force

if TYPE_CHECKING:
    from bayescal.benchmark.results import Section

RESULTS = Path("bayescal-results")  # where `bayescal bench` leaves what it finds


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A folder written by `bayescal bench`.")] = RESULTS,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="The file to write, or a folder for it; a folder for png, svg and all. Default: report.html, "
            "report.md, report.tex or figures/ in RESULTS.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="html, markdown, latex, png, svg or all.")
    ] = "html",
    force: Force = False,
) -> None:
    """Turn what experiments found into one page to read and to send.

    The page is a single file with tables and interactive figures; it needs no network. Tables also come as Markdown and
    LaTeX, figures as PNG and SVG. What an earlier report wrote is replaced, anything else only with --force.
    """
    from bayescal.cli.screen import count, near, out
    from bayescal.report.files import check_format, check_outputs, output_paths, write
    from bayescal.report.load import read_sections

    formats = check_format(form)
    where = output_paths(results, output, formats)
    sections = read_sections(results)
    check_outputs(where, force, own=results)
    written = write(sections, where)
    screen = out()
    screen.print(f"{count(len(sections), 'experiment')}: {', '.join(map(_named, sections))}.")
    for path in written:
        screen.print(f"  {near(path)}", soft_wrap=True)


def _named(section: "Section") -> str:
    """An experiment's name; results of before there were checksums are believed, and it is said."""
    return section.experiment if section.checked else f"{section.experiment} (without a checksum)"
