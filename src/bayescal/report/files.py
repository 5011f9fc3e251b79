"""Writing a report: one file per format, a folder of figures, each whole or not at all."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bayescal.benchmark.results import Figure, Section
from bayescal.errors import DataError
from bayescal.report.latex import document
from bayescal.report.markdown import section_markdown
from bayescal.report.page import GENERATOR, to_html
from bayescal.report.plotly_figures import is_empty
from bayescal.report.styles import styles_for
from bayescal.report.text import Addresses
from bayescal.util.atomic import clear_drafts, write_text

FORMATS = ("html", "markdown", "latex", "png", "svg")
NAMES = {"html": "report.html", "markdown": "report.md", "latex": "report.tex", "png": "figures", "svg": "figures"}
# In the first lines of each file; a file that has it was made by this command and may be replaced.
MARKS = {"html": f'content="{GENERATOR}"', "markdown": f"<!-- {GENERATOR} -->", "latex": f"% {GENERATOR}"}
HEAD = 4096  # bytes in which the mark is looked for


def check_format(wanted: str) -> tuple[str, ...]:
    """The formats to write."""
    if wanted not in (*FORMATS, "all"):
        raise DataError(f"--format {wanted}: expected one of {', '.join(FORMATS)} or all")
    return FORMATS if wanted == "all" else (wanted,)


def output_paths(results: Path, output: Path | None, formats: Sequence[str]) -> dict[str, Path]:
    """Where each format goes: beside the results, or to `output`.

    That is a folder where there are several formats or several files, or where it is one already or has no ending.
    """
    (first, *more) = formats
    if output is None or more or (first in MARKS and (output.is_dir() or not (output.suffix or output.exists()))):
        return {name: (output or results) / NAMES[name] for name in formats}
    return {first: output}


def check_outputs(where: dict[str, Path], force: bool, own: Path) -> None:
    """Refuse, before any work is done, to write over what another program or a person has made.

    `own`: the folder of results, whose figures are this command's; elsewhere those that bear its mark are.
    """
    for name, path in where.items():
        if name in MARKS:
            _check_file(path, MARKS[name], force)
        elif path.exists() and not path.is_dir():
            raise DataError(f"{path} is a file: expected the name of a folder for the figures")
        elif path.is_dir() and not force and path.resolve() != (own / NAMES[name]).resolve() and _has_others(path):
            raise DataError(f"{path} holds files already: choose another folder with -o, or replace them with --force")


def _has_others(folder: Path) -> bool:
    """Whether there is anything in a folder of figures that this command did not draw; a killed one may be repeated."""
    clear_drafts(folder)
    return not all(path.is_file() and _is_ours(path, GENERATOR) for path in folder.iterdir())


def _is_ours(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        return mark.encode() in file.read(HEAD)


def _check_file(path: Path, mark: str, force: bool) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected the name of a file to write")
    if not path.exists() or force:
        return
    if not _is_ours(path, mark):
        raise DataError(
            f"{path} was not made by `bayescal report`: choose another name with -o, or replace it with --force"
        )


def write(sections: Sequence[Section], where: dict[str, Path]) -> list[Path]:
    """Every format asked for; the files that were written."""
    written = []
    images = {}
    for name in ("png", "svg"):
        if name in where:
            drawn = write_figures(sections, where[name], name)
            written += drawn.values()
            images = images or drawn
    texts = {
        "html": to_html,
        "markdown": lambda sections: markdown(sections, _beside(where.get("markdown"), images)),
        "latex": lambda sections: document(sections, MARKS["latex"]),
    }
    for name, text in texts.items():
        if name in where:
            _write(where[name], text(sections))
            written.append(where[name])
    return written


def _write(path: Path, text: str) -> None:
    """Under a temporary name first: a page that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def write_figures(sections: Sequence[Section], folder: Path, ending: str) -> dict[tuple[str, str], Path]:
    """Each figure, drawn by matplotlib, as folder/EXPERIMENT-FIGURE.ending, by experiment and figure key."""
    from bayescal.report.matplotlib_figures import matplotlib_figure
    from bayescal.report.plots import save_figure

    styles = styles_for(figure for section in sections for figure in section.figures)
    return {
        key: save_figure(matplotlib_figure(figure, styles), folder / f"{name}.{ending}", GENERATOR)
        for key, name, figure in _named(sections)
    }


def markdown(sections: Sequence[Section], images: dict[tuple[str, str], str] | None = None) -> str:
    """All sections in one file; `images`: where the figures are, seen from that file."""
    parts = [
        section_markdown(
            section, {key: path for (name, key), path in (images or {}).items() if name == section.experiment}
        )
        for section in sections
    ]
    return "\n".join([f"{MARKS['markdown']}\n\n# Bayes-CAL: what was found\n", *parts])


def _named(sections: Sequence[Section]) -> Iterator[tuple[tuple[str, str], str, Figure]]:
    addresses = Addresses()
    for section in sections:
        for figure in section.figures:
            if is_empty(figure):
                continue
            yield (section.experiment, figure.key), addresses.new(section.experiment, figure.key), figure


def _beside(file: Path | None, images: dict[tuple[str, str], Path]) -> dict[tuple[str, str], str]:
    """Paths of figures as the Markdown file names them."""
    return {key: f"{path.parent.name}/{path.name}" for key, path in images.items()} if file else {}
