"""What an experiment found, as plain data: tables and figures with the command that made them.

An experiment writes a `Section` as JSON; the report reads sections and draws them. Nothing here computes a metric.
Accuracies and other shares are fractions (0.9, not 90); a column's unit says how to print them.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bayescal.errors import DataError

FORMAT = 1  # of the JSON; goes up when an old report could not be read as a new one


@dataclass(frozen=True)
class Value:
    """A number and, where it is a mean, its standard error and how many it is the mean of."""

    mean: float | None  # None: there is no number here, and `why` may say why
    error: float | None = None
    n: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    better: Literal["high", "low", ""] = ""  # "" : not a competition, nothing is bold
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

    def save(self, folder: Path) -> Path:
        """As `folder/EXPERIMENT.json`, all or nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.experiment}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path


def read_section(path: Path) -> Section:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error}). Make it again with `bayescal bench`.") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise DataError(f"{path}: is not a result of `bayescal bench` that this version reads. Run it again.")
    tables = tuple(
        Table(
            **table
            | {
                "columns": tuple(Column(**column) for column in table["columns"]),
                "rows": tuple(
                    Row(
                        **row | {"cells": {k: c if isinstance(c, str) else Value(**c) for k, c in row["cells"].items()}}
                    )
                    for row in table["rows"]
                ),
            }
        )
        for table in content["tables"]
    )
    figures = tuple(Figure(**figure) for figure in content["figures"])
    return Section(**content | {"tables": tables, "figures": figures, "notes": tuple(content["notes"])})
