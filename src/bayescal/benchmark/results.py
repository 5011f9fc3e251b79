"""What an experiment found, as plain data: tables and figures with the command that made them.

An experiment writes a `Section` as JSON; the report reads sections and draws them. Nothing here computes a metric.
Accuracies and other shares are fractions (0.9, not 90); a column's unit says how to print them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from bayescal.errors import DataError
from bayescal.util.atomic import write_text
from bayescal.util.checksum import KEY, check_seal, sealed
from bayescal.util.jsonable import loads
from bayescal.util.regular import read_file
from bayescal.util.typed import read

FORMAT = 2  # of the JSON; goes up when an old report could not be read as a new one
_UNCHECKED = 1  # the format before there was a checksum, the same in all else


Better = Literal["high", "low", ""]  # which numbers win


@dataclass(frozen=True)
class Value:
    """A number and, where it is a mean, its standard error and how many it is the mean of."""

    mean: float | None  # None: there is no number here, and `why` may say why
    error: float | None = None
    n: int | None = None
    why: str = ""
    seeds: tuple[int, ...] = ()  # that it is the mean over; empty: of none, or made before they were kept


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    better: Better = ""  # "" : not a competition, nothing is bold
    unit: Literal["%", "", "s"] = "%"  # "%": values are fractions, printed times 100
    digits: int = 1
    published: bool = False  # from the paper, not measured here: printed apart, never ranked with ours
    group: str = ""  # heading over neighbouring columns, such as a data set


@dataclass(frozen=True)
class Row:
    label: str
    cells: Mapping[str, Value | str]  # by column key; a missing key is an empty cell
    group: str = ""  # heading over neighbouring rows
    ranked: bool = True  # False: shown, but not in the running for best and second


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""  # below the table: what ± means, how it was chosen

    @property
    def has_errors(self) -> bool:
        """Whether some number comes with its standard error: means over one seed have none."""
        cells = (row.cells.get(column.key) for row in self.rows for column in self.columns)
        return any(isinstance(cell, Value) and cell.error is not None for cell in cells)

    def seeds(self, row: Row) -> set[tuple[int, ...]]:
        """The seeds that the numbers of a row are means over; a number from before they were kept gives its count."""
        cells = [row.cells.get(column.key) for column in self.columns if not column.published]
        found = [cell for cell in cells if isinstance(cell, Value) and cell.mean is not None]
        return {cell.seeds or tuple(range(1, (cell.n or 0) + 1)) for cell in found if cell.seeds or cell.n}

    def with_equal_seeds(self) -> "Table":
        """All rows that compete share their seeds: those of most rows; others follow, apart and out of the running."""
        counts = Counter(seeds for row in self.rows for seeds in self.seeds(row))
        if len(counts) < 2:
            return self
        shared = max(counts, key=lambda seeds: (counts[seeds], len(seeds)))
        same = [row for row in self.rows if self.seeds(row) <= {shared}]
        others = [
            replace(row, group=f"{_in_words(self.seeds(row))} only", ranked=False)
            for row in self.rows
            if not self.seeds(row) <= {shared}
        ]
        note = f"{self.note} Rows under “… only” are means over other seeds than the rest and are not compared with it."
        return replace(self, rows=(*same, *sorted(others, key=lambda row: row.group)), note=note.strip())

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary per row, as `pandas.DataFrame` takes them: `label`, and each column by its key.

        A column whose numbers have a standard error is followed by one with the errors, `KEY_error`. Shares are
        fractions; None: there is no number.
        """
        with_error = {
            column.key
            for column in self.columns
            for row in self.rows
            if isinstance(cell := row.cells.get(column.key), Value) and cell.error is not None
        }
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"group": row.group} if any(other.group for other in self.rows) else {}
            record["label"] = row.label
            for column in self.columns:
                cell = row.cells.get(column.key)
                record[column.key] = cell.mean if isinstance(cell, Value) else cell
                if column.key in with_error:
                    record[f"{column.key}_error"] = cell.error if isinstance(cell, Value) else None
            records.append(record)
        return records


def _in_words(seeds: Iterable[tuple[int, ...]]) -> str:
    """ "seeds 1, 3" """
    return " and ".join(f"seed{'s' * (len(own) > 1)} {', '.join(map(str, own))}" for own in sorted(seeds))


@dataclass(frozen=True)
class Figure:
    """`kind` says how `data` is drawn (the keys of each kind are in docs/experiments.md)."""

    key: str
    title: str
    kind: Literal["lines", "landscape", "points", "reliability", "scatter"]
    data: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One experiment's outcome."""

    experiment: str  # its name on the command line
    title: str
    lead: str  # what was done and what came out, in plain words; paragraphs separated by empty lines
    command: str  # reruns it
    versions: Mapping[str, str]  # bayescal, torch, python, backbone, device …
    made: str  # date and time, ISO
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    limits: str = ""  # what this does not show
    notes: tuple[str, ...] = field(default=())  # what was skipped or missing
    checked: bool = field(default=True, compare=False)  # False: read from a file of before there was a checksum

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`, with a checksum."""
        content = {name: value for name, value in asdict(self).items() if name != "checked"}
        return sealed({"format": FORMAT, **content}) if self.checked else {"format": _UNCHECKED, **content}

    def save(self, folder: Path) -> Path:
        """As `folder/EXPERIMENT.json`, all or nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.experiment}.json"
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path


@dataclass(frozen=True)
class ExperimentResult:
    """What `Bench.run` gives: a section with its tables and figures by key, and the file it is kept in."""

    section: Section
    path: Path

    @property
    def tables(self) -> dict[str, Table]:
        return {table.key: table for table in self.section.tables}

    @property
    def figures(self) -> dict[str, Figure]:
        return {figure.key: figure for figure in self.section.figures}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was skipped or missing."""
        return self.section.notes


def read_section(path: Path) -> Section:
    try:
        content = loads(read_file(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error}). Make it again with `bayescal bench`.") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version not in (_UNCHECKED, FORMAT):
        raise DataError(f"{path}: is not a result of `bayescal bench` that this version reads. Run it again.")
    try:
        checked = check_seal(content, required=version == FORMAT)
        own = {name: value for name, value in content.items() if name not in ("format", KEY)}
        if missing := {each.name for each in fields(Section)} - {"checked", *own}:
            raise ValueError(f"{min(missing)}: is missing")
        return read(Section, own | {"checked": checked})
    except ValueError as error:
        raise DataError(
            f"{path}: is damaged: {error}. Run `bayescal bench {path.stem}` again, or delete the file."
        ) from error
