"""Records as tables for other programs: filtered, flattened, written whole or not at all."""

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bayescal.errors import BayescalError, DataError
from bayescal.protocol.store import Record, Store


def matching(records: Iterable[Record], conditions: Sequence[str]) -> Iterator[Record]:
    """Records in which every `name=value` holds; names as in `flat`."""
    wanted = [_condition(text) for text in conditions]
    for record in records:
        row = flat(record)
        for name, _ in wanted:
            if name not in row and not name.startswith(("config.", "scores.", "last.", "best.")):
                raise BayescalError(f"--where {name}: records have no such entry; they have {', '.join(sorted(row))}")
        if all(str(row.get(name)) == value for name, value in wanted):
            yield record


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise BayescalError(f"--where {text!r}: expected name=value, for example --where dataset=pacs")
    return name, value


def flat(record: Record) -> dict[str, Any]:
    """One run as one row: dotted names, no lists of epochs; the ends and the best of curves instead."""
    row: dict[str, Any] = {}
    plain = ("key", "dataset", "entry", "method", "purpose", "fold", "seed", "trial", "draws", "parameters", "stopped",
             "seconds", "made")  # fmt: skip
    for name in plain:
        row[name] = record[name]
    row["train_environments"] = "|".join(record["train_environments"])
    row["shots"], row["val_shots"] = record["shots"]
    for group in ("backbone", "versions", "config", "chosen"):
        row |= {f"{group}.{name}": value for name, value in record[group].items()}
    row |= {f"split.{name}": value for name, value in record["split"].items() if name != "notes"}
    row["split.notes"] = " ".join(record["split"]["notes"])
    for name, curve in record["curves"].items():
        if curve:
            row[f"last.{name}"] = curve[-1]
            row[f"best.{name}"] = max((v for v in curve if v is not None), default=None)
    for part in ("scores", "new"):
        for place, values in record.get(part, {}).items():
            for name, value in values.items():
                if isinstance(value, dict):
                    if name.startswith("per_"):
                        row |= {f"{part}.{place}.{name}.{key}": v for key, v in value.items()}
                else:
                    row[f"{part}.{place}.{name}"] = value
    return row


def read_records(place: Path) -> Iterator[Record]:
    """Records of a folder of `bayescal bench`, of its database, or of a JSON export (one record a line)."""
    database = place / "study.db" if place.is_dir() else place
    if not database.exists():
        raise DataError(f"{place}: expected a folder of `bayescal bench` or a JSON export of its records")
    if database.suffix == ".db":
        yield from Store(f"sqlite:///{database.absolute().as_posix()}").find()
        return
    with open(database, encoding="utf-8") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                record = json.loads(text)
                record["key"], record["scores"], record["backbone"]["fingerprint"]
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(f"{place}, line {number}: is not a record ({error!r})") from error
            yield record


def write_records(records: Iterable[Record], format: str, path: Path | None) -> int:
    """Write as "json" (one record a line), "csv" or "parquet"; None: to the screen. Returns how many."""
    if path is None:
        return _write(records, format, sys.stdout)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if format == "parquet":
            n = _write_parquet(records, temporary)
        else:
            with open(temporary, "w", encoding="utf-8", newline="") as stream:
                n = _write(records, format, stream)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return n


def _write(records: Iterable[Record], format: str, stream: TextIO) -> int:
    if format == "json":
        return sum(1 for record in records if stream.write(json.dumps(record) + "\n"))
    rows = [flat(record) for record in records]
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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
