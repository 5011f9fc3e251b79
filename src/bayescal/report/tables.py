"""What stands in a table, decided once for every format: text, digits, units, ranks, footnotes.

Ranks are those of the numbers as they are printed: two rows that both show 85.1 share a rank, whatever follows.
By hand, because no table library ranks numbers as they are printed or keeps means in line beside their ± errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from string import ascii_lowercase

from bayescal.benchmark.results import Column, Row, Table, Value

BEST, SECOND = 1, 2
NOTHING = "–"
PAPER = "paper, RN50"  # over numbers that were published, not measured here


@dataclass(frozen=True)
class Cell:
    text: str = ""  # the mean, or what stands in its place
    error: str = ""  # standard error, without ±
    number: bool = False
    rank: int = 0  # BEST, SECOND or neither
    mark: str = ""  # of the footnote that says why there is no number
    why: str = ""
    n: int | None = None


@dataclass(frozen=True)
class Heading:
    """Over a column. `paper` is said where the experiment's own text does not say that a column was published."""

    title: str
    unit: str = ""
    paper: str = ""

    def __str__(self) -> str:
        extra = ", ".join(part for part in (self.unit, self.paper) if part)
        return f"{self.title} ({extra})" if extra else self.title


@dataclass(frozen=True)
class View:
    """A table ready to be written down."""

    table: Table
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Row, tuple[Cell, ...]], ...]
    unit: str  # of all numbers, where they share one; then no heading repeats it
    footnotes: tuple[tuple[str, str], ...]  # mark, why

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.table.columns

    @property
    def grouped(self) -> bool:
        return any(column.group for column in self.columns)

    def cells(self, column: int) -> list[Cell]:
        return [cells[column] for _, cells in self.rows]

    def error_width(self, column: int) -> int:
        return max((len(cell.error) for cell in self.cells(column)), default=0)

    def is_text(self, column: int) -> bool:
        """No number in it (a tick, a name): not aligned as numbers are."""
        return not any(cell.number or cell.text == NOTHING for cell in self.cells(column))


def view(table: Table) -> View:
    unit = _common_unit(table)
    marks = _marks(table)
    ranks = [_ranks(table.rows, column) for column in table.columns]
    rows = tuple(
        (
            row,
            tuple(
                _cell(row.cells.get(column.key, ""), column, ranks[j][i], marks)
                for j, column in enumerate(table.columns)
            ),
        )
        for i, row in enumerate(table.rows)
    )
    headings = tuple(_heading(column, "" if unit else _unit_of(table, column)) for column in table.columns)
    return View(table, headings, rows, unit, tuple((mark, why) for why, mark in marks.items()))


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Headings over neighbouring columns, each with the number of columns below it."""
    return [(name, len(list(same))) for name, same in groupby(columns, key=lambda column: column.group)]


def _heading(column: Column, unit: str) -> Heading:
    said = "paper" in f"{column.group} {column.title}".lower()
    return Heading(column.title, unit, PAPER if column.published and not said else "")


def _cell(content: Value | str, column: Column, rank: int, marks: dict[str, str]) -> Cell:
    if isinstance(content, str):
        return Cell(content)
    mean = _scaled(content.mean, column)
    if mean is None:
        return Cell(NOTHING, mark=marks.get(content.why, ""), why=content.why)
    error = _scaled(content.error, column)
    spread = "" if error is None else digits(error, column.digits)
    return Cell(digits(mean, column.digits, small=not column.unit), spread, number=True, rank=rank, n=content.n)


def digits(number: float, after_the_point: int, small: bool = False) -> str:
    """A number with a real minus sign; `small`: what would round to zero is said to be less than the last digit."""
    last = 10.0**-after_the_point
    if small and 0 < number < last / 2:
        return f"<{last:.{after_the_point}f}"
    commas = "," if abs(number) >= 10_000 else ""
    text = f"{number:{commas}.{after_the_point}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def _ranks(rows: Sequence[Row], column: Column) -> list[int]:
    """Best and second among the rows in the running; where all are equal there is neither."""
    shown: dict[int, float] = {}
    for i, row in enumerate(rows):
        content = row.cells.get(column.key)
        mean = _scaled(content.mean, column) if isinstance(content, Value) else None
        if row.ranked and mean is not None:
            shown[i] = float(f"{mean:.{column.digits}f}")
    order = sorted(set(shown.values()), reverse=column.better == "high")[:SECOND]
    if not column.better or len(order) < SECOND:
        return [0] * len(rows)
    return [order.index(shown[i]) + 1 if shown.get(i) in order else 0 for i in range(len(rows))]


def _scaled(number: float | None, column: Column) -> float | None:
    """As printed; numbers that are none (NaN, ±∞) count as missing."""
    if number is None or not isfinite(number):
        return None
    return 100 * number if column.unit == "%" else float(number)


def _unit_of(table: Table, column: Column) -> str:
    has_numbers = any(isinstance(row.cells.get(column.key), Value) for row in table.rows)
    return column.unit if has_numbers else ""


def _common_unit(table: Table) -> str:
    """The unit that all columns of numbers share, or ""."""
    units = {
        column.unit
        for column in table.columns
        if any(isinstance(row.cells.get(column.key), Value) for row in table.rows)
    }
    return units.pop() if len(units) == 1 else ""


def _marks(table: Table) -> dict[str, str]:
    """A letter for each reason why there is no number, in reading order."""
    reasons: dict[str, str] = {}
    for row in table.rows:
        for column in table.columns:
            content = row.cells.get(column.key)
            if isinstance(content, Value) and content.why and _scaled(content.mean, column) is None:
                reasons.setdefault(content.why, _letter(len(reasons)))
    return reasons


def _letter(i: int) -> str:
    """a … z, aa, ab …"""
    rest = i // len(ascii_lowercase)
    return (_letter(rest - 1) if rest else "") + ascii_lowercase[i % len(ascii_lowercase)]
