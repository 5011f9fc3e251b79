"""Tables on a terminal: best bold, second underlined, published columns dim; wide ones in blocks of columns."""

import textwrap
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from bayescal.benchmark.results import Table
from bayescal.report.tables import BEST, SECOND, Cell, View, column_groups, view
from bayescal.report.text import paragraphs

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

WIDTH = 100  # columns of a terminal that nobody measured
GAP = 2  # blanks between columns
LABEL, TITLE, GROUP = 30, 14, 24  # longest label, line of a heading and heading over columns


def table_rich(table: Table, width: int = WIDTH) -> "RichTable":
    """A table no wider than `width`: what does not fit side by side follows below, with the labels again."""
    from rich.table import Table as RichTable
    from rich.text import Text

    seen = view(table)
    whole = RichTable.grid()
    whole.add_row(Text(table.title + (f" (in {seen.unit})" if seen.unit else ""), style="bold"))
    widths = _widths(seen)
    labels = min(LABEL, max((_length(row.label) for row in table.rows), default=0))
    for columns in _blocks(seen, widths, width - labels):
        whole.add_row("")
        for line in _block(seen, columns, widths, labels):
            whole.add_row(line)
    notes = [f"{mark}  {why}" for mark, why in seen.footnotes] + paragraphs(table.note)
    if notes:
        whole.add_row("")
    for note in notes:
        whole.add_row(Text(textwrap.fill(note, width), style="dim"))
    return whole


def _blocks(seen: View, widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns stand side by side. A group of columns stays together where it fits."""
    blocks: list[list[int]] = [[]]

    def left() -> int:
        return room - sum(widths[j] + GAP for j in blocks[-1])

    start = 0
    for _, size in column_groups(seen.columns):
        group = range(start, start + size)
        start += size
        needed = sum(widths[j] + GAP for j in group)
        if blocks[-1] and left() < needed <= room:
            blocks.append([])
        for j in group:
            if blocks[-1] and left() < widths[j] + GAP:
                blocks.append([])
            blocks[-1].append(j)
    return [block for block in blocks if block]


def _block(seen: View, columns: Sequence[int], widths: Sequence[int], labels: int) -> list["Text"]:
    from rich.text import Text

    lines = []
    if any(seen.columns[j].group for j in columns):
        lines.append(_groups(seen, columns, widths, labels))
    lines += _headings(seen, columns, widths, labels)
    lines.append(Text("─" * (labels + sum(widths[j] + GAP for j in columns)), style="dim"))
    group = ""
    for row, cells in seen.rows:
        if row.group != group and row.group:
            lines.append(Text(row.group, style="italic"))
        group = row.group
        first, *more = _fold(row.label, labels)
        line = Text(_pad(first, labels))
        for j in columns:
            line.append(" " * GAP)
            line.append_text(_cell(cells[j], seen, j, widths[j]))
        lines += [line, *map(Text, more)]
    return lines


def _groups(seen: View, columns: Sequence[int], widths: Sequence[int], labels: int) -> "Text":
    from rich.text import Text

    line = Text(" " * labels)
    start = 0
    for name, size in column_groups([seen.columns[j] for j in columns]):
        span = sum(widths[j] + GAP for j in columns[start : start + size]) - GAP
        start += size
        line.append(" " * GAP)
        if len(name) > span:
            name = name[: span - 1] + "…"
        line.append(f" {name} ".center(span, "─") if name and len(name) + 2 <= span else name.center(span), "dim")
    return line


def _headings(seen: View, columns: Sequence[int], widths: Sequence[int], labels: int) -> list["Text"]:
    """Titles in lines, the last of which stands right above the numbers."""
    from rich.text import Text

    wrapped = {j: _title(seen, j, widths[j]) for j in columns}
    height = max(map(len, wrapped.values()))
    lines = []
    for k in range(height):
        line = Text(" " * labels)
        for j in columns:
            i = k - (height - len(wrapped[j]))
            shown = wrapped[j][i] if i >= 0 else ""
            line.append(" " * GAP)
            style = "dim" if seen.columns[j].published else "bold"
            blanks = widths[j] - _length(shown)
            before = blanks // 2 if seen.is_text(j) else blanks
            line.append(" " * before + shown + " " * (blanks - before), style)
        lines.append(line)
    return lines


def _cell(cell: Cell, seen: View, j: int, width: int) -> "Text":
    from rich.text import Text

    style = {BEST: "bold", SECOND: "underline"}.get(cell.rank, "")
    dim = "dim" if seen.columns[j].published else ""
    shown = _written(cell, seen.error_width(j))
    blanks = width - _length(shown)
    before = blanks // 2 if seen.is_text(j) else blanks
    text = Text(" " * before, style=dim)
    text.append(cell.text, style)
    return text.append(shown[len(cell.text) :] + " " * (blanks - before))


def _written(cell: Cell, error_width: int) -> str:
    """A cell without its look; means stand in line, with or without an error."""
    if not error_width:
        return cell.text + cell.mark
    error = f" ± {cell.error:>{error_width}}" if cell.error else " " * (3 + error_width)
    return cell.text + cell.mark + error[len(cell.mark) if not cell.error else 0 :]


def _widths(seen: View) -> list[int]:
    widths = []
    for j in range(len(seen.columns)):
        cells = max((_length(_written(cell, seen.error_width(j))) for cell in seen.cells(j)), default=0)
        widths.append(max(cells, *map(_length, _title(seen, j, max(cells, TITLE)))))
    start = 0
    for name, size in column_groups(seen.columns):
        missing = min(_length(name), GROUP) + 2 - sum(widths[start : start + size]) - GAP * (size - 1)
        for j in range(start, start + size) if name and missing > 0 else ():
            widths[j] += ceil(missing / size)
        start += size
    return widths


def _title(seen: View, j: int, width: int) -> list[str]:
    return textwrap.wrap(str(seen.headings[j]), max(width, 1)) or [""]


def _fold(shown: str, width: int) -> list[str]:
    lines = textwrap.wrap(shown, max(width - 1, 1), subsequent_indent="  ") if _length(shown) > width else [shown]
    return lines or [""]


def _pad(shown: str, width: int) -> str:
    return shown + " " * (width - _length(shown))


def _length(shown: str) -> int:
    """Cells on the screen: some letters are two wide."""
    from rich.cells import cell_len

    return cell_len(shown)
