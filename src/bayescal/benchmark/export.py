"""Records as tables for other programs: filtered, flattened, written whole or not at all."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol

from bayescal.benchmark.records import Record, Scores
from bayescal.benchmark.store import Store
from bayescal.errors import BayescalError, DataError
from bayescal.util.atomic import replacing
from bayescal.util.csv_cells import plain_cell
from bayescal.util.jsonable import loads
from bayescal.util.regular import check_regular

SHOWN_VALUES = 12  # of a column, in a message
OLD_NAMES = {"entry": "variant", "draws": "samples"}  # columns that version 0.1 called otherwise


class Writer(Protocol):
    """What text is written to."""

    def write(self, text: str, /) -> int: ...


def matching(records: Iterable[Record], conditions: Sequence[str]) -> Iterator[Record]:
    """Records in which every `name=value` holds; names as in `flat`."""
    wanted = [_condition(text) for text in conditions]
    for record in records:
        row = flat(record)
        for name, _ in wanted:
            if name not in row and not name.startswith(("config.", "scores.", "last.", "best.")):
                raise BayescalError(f"--where {name}: records have no such column; they have {', '.join(sorted(row))}")
        if all(str(row.get(name)) == value for name, value in wanted):
            yield record


def no_match(records: Iterable[Record], conditions: Sequence[str]) -> str:
    """Why no record is left: how many there are, and the values that the columns in question have."""
    rows = [flat(record) for record in records]
    said = []
    for name, _ in map(_condition, conditions):
        values = sorted({str(row[name]) for row in rows if name in row})
        more = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
        said.append(f"{name} is {', '.join(values[:SHOWN_VALUES])}{more}" if values else f"none has a {name}")
    return f"--where {' --where '.join(conditions)}: no record of {len(rows)} matches; {'; '.join(said)}"


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise BayescalError(f"--where {text!r}: expected name=value, for example --where dataset=pacs")
    if name in OLD_NAMES:
        raise BayescalError(f"--where {text}: this column is called {OLD_NAMES[name]} now: {OLD_NAMES[name]}={value}")
    return name, value


def flat(record: Record) -> dict[str, Any]:
    """One run as one row: dotted names, no lists of epochs; the ends and the best of curves instead."""
    plain = ("key", "dataset", "variant", "method", "purpose", "fold", "seed", "trial", "samples", "parameters",
             "stopped", "seconds", "made", "shots", "val_shots", "checked")  # fmt: skip
    row: dict[str, Any] = {name: getattr(record, name) for name in plain}
    row["train_environments"] = "|".join(record.train_environments)
    groups = {
        "backbone": asdict(record.backbone),
        "versions": record.versions,
        "config": record.config,
        "chosen": record.chosen,
        "split": record.split.to_json() | {"notes": " ".join(record.split.notes)},
    }
    row |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    for name, curve in record.curves.items():
        if curve:
            row[f"last.{name}"] = curve[-1]
            row[f"best.{name}"] = max((v for v in curve if v is not None), default=None)
    for part, by_checkpoint in (("scores", record.scores), ("new", record.new)):
        for checkpoint, scores in by_checkpoint.items():
            row |= {f"{part}.{checkpoint}.{name}": value for name, value in _flat_scores(scores).items()}
    return row


def _flat_scores(scores: Scores) -> dict[str, Any]:
    """Every number, and accuracy by class and environment; no curves."""
    named = {"per_class": scores.per_class, "per_environment": scores.per_environment}
    plain = {name: value for name, value in vars(scores).items() if not is_dataclass(value) and name not in named}
    return plain | {f"{part}.{name}": value for part, values in named.items() for name, value in values.items()}


def read_records(path: Path) -> Iterator[Record]:
    """Records of a folder of `bayescal bench`, of its database, or of a JSON export (one record a line).

    The first that is damaged or no record is an error: what is taken in elsewhere is taken in whole.
    """
    database = path / "study.db" if path.is_dir() else path
    if not database.exists():
        raise DataError(f"{path}: expected a folder of `bayescal bench` or a JSON export of its records")
    if database.suffix == ".db":
        for entry in Store(f"sqlite:///{database.absolute().as_posix()}", create=False).entries():
            if not isinstance(entry, Record):
                raise DataError(f"{path}: {entry}")
            yield entry
        return
    try:
        lines = open(check_regular(database), "rb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    with lines:
        for number, text in enumerate(lines, start=1):
            try:
                yield Record.from_json(loads(text))
            except ValueError as error:  # not JSON, or not a record
                raise DataError(f"{path}, line {number}: is not a record ({error})") from error


def write_records(records: Iterable[Record], format: str, to: "Path | Writer", raw: bool = False) -> int:
    """Write as "json" (one record a line), "csv" or "parquet" to a file or, as text, to a stream. Returns how many.

    `raw`: text in CSV stays as it is, though a spreadsheet may take it for a formula.
    """
    if not isinstance(to, Path):
        return _write(records, format, to, raw)
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as draft:
        if format == "parquet":
            return _write_parquet(records, draft)
        with open(draft, "w", encoding="utf-8", newline="") as stream:
            return _write(records, format, stream, raw)


def _write(records: Iterable[Record], format: str, stream: Writer, raw: bool) -> int:
    if format == "json":
        return sum(1 for record in records if stream.write(json.dumps(record.to_json()) + "\n"))
    rows = [flat(record) for record in records]
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: plain_cell(value, raw) for name, value in row.items()} for row in rows)
    return len(rows)


def _write_parquet(records: Iterable[Record], path: Path) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BayescalError("Parquet needs pyarrow: install bayescal[parquet], or export CSV") from error
    rows = [flat(record) for record in records]
    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    arrays = {name: _array(pyarrow, values) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)
    return len(rows)


def _array(pyarrow: Any, values: list[Any]) -> Any:
    """A column of one type: an option may be a number in one method and words in another."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds:
        return pyarrow.array([None if v is None else float(v) for v in values] if float in kinds else values)
    if len(kinds) > 1:
        return pyarrow.array([None if v is None else str(v) for v in values])
    return pyarrow.array(values, pyarrow.string()) if not kinds else pyarrow.array(values)


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Every name that occurs, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))
