"""Tables inside hand-written pages, kept equal to the result files they come from.

    <!-- excerpt mini/sections/main.json accuracy | CLIP zero-shot; CoOp; Bayes-CAL | pacs; ccd -->
    …
    <!-- end of excerpt -->

`python -m bayescal.report.excerpt PAGE.md` writes what stands between the marks anew: these rows and columns of that
table, in this order, with the number of seeds in its heading. Without rows or columns: all. "A + B", each of this form,
puts B's rows below A's, in the columns of A. Rows whose means are over different seeds do not come into one table: that
is refused.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from bayescal.benchmark.results import Table, read_section
from bayescal.errors import DataError
from bayescal.report.markdown import escape
from bayescal.report.tables import BEST, Cell, view
from bayescal.util.atomic import write_text

_MARKED = re.compile(r"(<!-- excerpt (?P<what>[^\n]*?) -->\n).*?(<!-- end of excerpt -->)", re.S)
_PLUS_MINUS = re.compile(r"[+-]?\d+(?:\.\d+)? ± \d+(?:\.\d+)?")


def update(page: str, folder: Path) -> str:
    """A page with its excerpts as the files below `folder` have them now."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{excerpt(found['what'], folder)}\n\n{found[3]}", page)


def excerpt(what: str, folder: Path) -> str:
    """A Markdown table, from "FILE TABLE | rows | columns", several of them joined by " + "."""
    first, *others = (part.split("|") for part in what.split(" + "))
    columns = _names(first, 2)
    table = _read(folder, first, columns)
    columns = columns or [column.key for column in table.columns]
    rows = tuple(row for other in others for row in _read(folder, other, columns).rows)
    return _markdown(replace(table, rows=(*table.rows, *rows)))


def _names(parts: list[str], place: int) -> list[str]:
    """The names between the bars; none: all."""
    return [name.strip() for name in parts[place].split(";")] if len(parts) > place and parts[place].strip() else []


def _read(folder: Path, parts: list[str], columns: list[str]) -> Table:
    """The rows that are asked for, of one table of one file."""
    file, _, key = parts[0].strip().partition(" ")
    section = read_section(folder / file)
    table = next((table for table in section.tables if table.key == key.strip()), None)
    if table is None:
        keys = ", ".join(table.key for table in section.tables)
        raise DataError(f"{file}: has no table {key!r}; it has {keys}")
    return _part(table, _names(parts, 1), columns, file)


def _part(table: Table, labels: list[str], keys: list[str], file: str) -> Table:
    by_label, by_key = {row.label: row for row in table.rows}, {column.key: column for column in table.columns}
    for asked, known in ((labels, by_label), (keys, by_key)):
        if missing := [name for name in asked if name not in known]:
            raise DataError(f"{file}, table {table.key}: there is no {missing[0]!r}; there are {', '.join(known)}")
    rows = tuple(by_label[label] for label in labels) if labels else table.rows
    columns = tuple(by_key[key] for key in keys) if keys else table.columns
    return Table(table.key, table.title, columns, rows)


def _markdown(table: Table) -> str:
    seeds = {own for row in table.rows for own in table.seeds(row)}
    if len(seeds) > 1:
        raise DataError(
            f"table {table.key}: its rows are means over different seeds ({', '.join(map(str, sorted(seeds)))}). "
            "Leave some out, or make a table of each."
        )
    found = view(table)
    (count,) = {len(own) for own in seeds} or {0}
    over = f"{count} seed{'s' * (count > 1)}" if count else ""
    lines = [[over, *(escape(str(heading)) for heading in found.headings)], ["---"] * (1 + len(table.columns))]
    lines += [[escape(row.label), *map(_text, cells)] for row, cells in found.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(cell: Cell) -> str:
    text = f"{cell.text} ± {cell.error}" if cell.error else cell.text
    return f"**{text}**" if cell.rank == BEST else text


def measured(folder: Path) -> set[str]:
    """Every "a ± b" that the sections below a folder say, in their tables and texts, without signs of a difference."""
    said: set[str] = set()
    for path in sorted(folder.rglob("sections/*.json")):
        section = read_section(path)
        said |= numbers(section.lead)
        for table in section.tables:
            for _, cells in view(table).rows:
                for cell in cells:
                    said |= numbers(f"{cell.text} ± {cell.error}" if cell.error else cell.text)
    return said


def numbers(text: str) -> set[str]:
    """Every "a ± b" in a text, without a sign."""
    plain = re.sub(r"\s+", " ", text.replace("−", "-").replace("**", ""))
    return {found.lstrip("+-") for found in _PLUS_MINUS.findall(plain)}


def main(pages: list[str]) -> None:
    for name in pages:
        page = Path(name)
        write_text(page, update(page.read_text(encoding="utf-8"), page.parent))


if __name__ == "__main__":
    main(sys.argv[1:])
