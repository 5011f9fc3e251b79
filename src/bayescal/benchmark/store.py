"""Records and claims in one database: SQLite by default, any SQLAlchemy URL. Optuna's tables live beside them.

A run has a key, the hash of everything that decides its outcome. A record, once written under its key, is never made
again. Before training, a process claims keys, so that several processes or machines can share a database; a claim
whose owner has died is taken over. Killed anywhere, the same command continues with what has no record yet.

A record that is not as it was written counts as none: it is named, left out of everything, and its run is made again.
"""

import json
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import exc

from bayescal.benchmark.database import first_line, in_words, prepare, shown
from bayescal.benchmark.records import Record
from bayescal.errors import BayescalWarning, DataError
from bayescal.util.atomic import sync_folder
from bayescal.util.jsonable import loads
from bayescal.util.process import began, can_ask, process_identity

RENEW_SECONDS = 30.0  # a process at work says so this often
STALE_SECONDS = 180.0  # a claim of another machine that was not renewed for this long is taken over
_IN_ONE_QUERY = 500

_tables = sql.MetaData()
_records = sql.Table(
    "bayescal_records",
    _tables,
    sql.Column("key", sql.String(64), primary_key=True),
    sql.Column("dataset", sql.String(120), index=True),
    sql.Column("entry", sql.String(120), index=True, key="variant"),  # as databases of version 0.1 call it
    sql.Column("fold", sql.String(120)),
    sql.Column("seed", sql.Integer),
    sql.Column("backbone", sql.String(80)),
    sql.Column("body", sql.Text),
)
_claims = sql.Table(
    "bayescal_claims",
    _tables,
    sql.Column("key", sql.String(64), primary_key=True),
    sql.Column("owner", sql.String(200)),
    sql.Column("renewed", sql.Float),
)


@dataclass(frozen=True)
class Damaged:
    """A row of the database that is not the record that was written."""

    key: str
    columns: dict[str, Any]  # what the row says it is: dataset, variant, fold, seed, backbone
    why: str

    def __str__(self) -> str:
        named = ", ".join(f"{name} {self.columns[name]}" for name in ("dataset", "variant", "fold", "seed"))
        return f"the record {self.key} ({named}) is damaged: {self.why}"


@dataclass(frozen=True)
class Verified:
    """What a look at every record found."""

    whole: int
    unchecked: int  # without a checksum, from before there was one; they can be read
    damaged: tuple[Damaged, ...]


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{(folder / 'study.db').absolute().as_posix()}"


class Store:
    """Records by key, and who is working on which."""

    def __init__(self, url: str, create: bool = True):
        """`create=False`: an SQLite file that is not there is refused, not made."""
        self.url = url
        try:
            parsed = sql.make_url(url)
            file = Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None
            if file is not None:
                _check_file(file, url, create)
            wait = {"timeout": 60} if file is not None else {}
            self.engine = prepare(sql.create_engine(parsed, connect_args=wait, pool_pre_ping=True), url)
            made_together(lambda: _tables.create_all(self.engine))
            if file is not None:
                sync_folder(file.parent)
        except (exc.SQLAlchemyError, ImportError, OSError, UnicodeDecodeError) as error:
            raise in_words(url, error) or DataError(
                f"the database {shown(url)} cannot be opened ({first_line(error)}). Expected a SQLAlchemy address "
                "such as sqlite:///results/study.db or postgresql+psycopg://user@host/name (which needs "
                'pip install "bayescal[postgres]")'
            ) from error
        self.owner = process_identity()
        self._has_looked = False  # at its own file, for damage

    # --- records -----------------------------------------------------------------------------------------------------

    def add(self, records: Iterable[Record]) -> None:
        """Write finished runs and give up their claims, in one transaction: all or none.

        A record that is there stays as it is, unless it is damaged.
        """
        # In one order everywhere: no two processes wait for rows that the other one has locked.
        ordered = sorted(records, key=lambda record: record.key)
        with self.engine.begin() as connection:
            keys = [record.key for record in ordered]
            for damaged in _damaged(self._in_parts(keys, _rows, connection)):
                connection.execute(sql.delete(_records).where(_records.c.key == damaged.key))
            for record in ordered:
                row = {**_columns(record), "body": json.dumps(record.to_json())}
                # Another process may have written the same run. The two records are equal, so either may stay.
                connection.execute(self._insert_new(_records).values(row))
                connection.execute(sql.delete(_claims).where(_claims.c.key == record.key))

    def finished(self, keys: Sequence[str]) -> set[str]:
        """Which of these runs have a record."""
        return {record.key for record in _whole(self._in_parts(keys, _rows))}

    def records(self, keys: Sequence[str]) -> list[Record]:
        """The records of these runs, in the order of the keys; runs without one are left out."""
        found = {record.key: record for record in _whole(self._in_parts(keys, _rows))}
        return [found[key] for key in keys if key in found]

    def find(self, **wanted: Any) -> Iterator[Record]:
        """Records whose columns (dataset, variant, fold, seed, backbone) have these values; a list: one of them."""
        query = sql.select(_records.c.key).order_by(_records.c.dataset, _records.c.variant, _records.c.key)
        for name, value in wanted.items():
            column = _records.c[name]
            query = query.where(column.in_(value) if isinstance(value, list | tuple) else column == value)
        yield from _whole(self._one_by_one(query))

    def entries(self) -> Iterator[Record | Damaged]:
        """Every record, and what stands in the place of those that are damaged."""
        yield from map(_record_of, self._one_by_one(sql.select(_records.c.key).order_by(_records.c.key)))

    def _one_by_one(self, query: Any) -> Iterator[Any]:
        """The rows whose keys a query finds, in its order.

        Read in parts, between which nothing is held: reading slowly (`bayescal records | less`) keeps no
        process from writing. An index that lost a row hides its record: that some may be missing is said once.
        """
        if not self._has_looked and (said := self._damage()):
            warnings.warn(f"{said}. Records may be missing from what follows", BayescalWarning, stacklevel=4)
        self._has_looked = True
        with self.engine.connect() as connection:
            keys = connection.execute(query).scalars().all()
        for start in range(0, len(keys), _IN_ONE_QUERY):
            part = keys[start : start + _IN_ONE_QUERY]
            rows = {row.key: row for row in self._in_parts(part, _rows)}
            yield from (rows[key] for key in part if key in rows)

    def verify(self) -> Verified:
        """Compare every record with its checksum, after the database has looked at its own file."""
        if said := self._damage():
            raise DataError(said)
        self._has_looked = True
        checked, damaged = [], []
        for entry in self.entries():
            if isinstance(entry, Record):
                checked.append(entry.checked)
            else:
                damaged.append(entry)
        return Verified(sum(checked), len(checked) - sum(checked), tuple(damaged))

    def _damage(self) -> str:
        """What SQLite finds wrong with its own file, in words; nothing of other databases, which look after theirs."""
        if self.engine.dialect.name != "sqlite":
            return ""
        with self.engine.connect() as connection:
            said = connection.execute(sql.text("PRAGMA integrity_check(3)")).scalars().all()
        if said == ["ok"]:
            return ""
        problems = "; ".join(str(line).removeprefix("*** in database main ***").strip() for line in said)
        return f"the database {shown(self.url)} is damaged: {' '.join(problems.split())}"

    # --- claims ------------------------------------------------------------------------------------------------------

    def claim(self, keys: Sequence[str]) -> list[str]:
        """Take these runs for this process; those that a living process has, or that are finished, are left out."""
        mine: set[str] = set()
        with self.engine.begin() as connection:
            now = time.time()
            rows = {row.key: row for row in self._in_parts(keys, _claimed, connection)}
            for key in sorted(keys):
                if key in rows:
                    if rows[key].owner != self.owner and not _abandoned(rows[key].owner, rows[key].renewed, now):
                        continue
                    taken = connection.execute(
                        sql.update(_claims)
                        .where(_claims.c.key == key, _claims.c.owner == rows[key].owner)
                        .values(owner=self.owner, renewed=now)
                    ).rowcount
                else:
                    new = self._insert_new(_claims).values(key=key, owner=self.owner, renewed=now)
                    taken = connection.execute(new).rowcount
                if taken:
                    mine.add(key)
            # Asked after claiming: a run that was finished in the meantime has a record and no claim any more.
            done = {record.key for record in _whole(self._in_parts(sorted(mine), _rows, connection))}
            for key in sorted(done):
                connection.execute(sql.delete(_claims).where(_claims.c.key == key))
        mine -= done
        return [key for key in keys if key in mine]

    def renew(self) -> None:
        """Say that this process is still at work on what it has claimed."""
        with self.engine.begin() as connection:
            connection.execute(sql.update(_claims).where(_claims.c.owner == self.owner).values(renewed=time.time()))

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Renew the claims while the work goes on, and give up what is still claimed at its end, or when it failed."""
        over = threading.Event()
        beat = threading.Thread(target=self._keep_renewing, args=(over,), name="bayescal-claims", daemon=True)
        beat.start()
        try:
            try:
                yield
            finally:
                over.set()
                beat.join()
        except BaseException:
            with suppress(DataError, exc.SQLAlchemyError):  # on a full disk this fails too; the dead lose their claims
                self._release()
            raise
        self._release()

    def _keep_renewing(self, over: threading.Event) -> None:
        """In a thread of its own: an epoch of an image model, or scoring many runs, may take longer than a claim."""
        while not over.wait(RENEW_SECONDS):
            with suppress(DataError, exc.SQLAlchemyError):  # another process holds the database: the next time
                self.renew()

    def _release(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(sql.delete(_claims).where(_claims.c.owner == self.owner))

    def _insert_new(self, table: sql.Table) -> Any:
        """An insert that leaves a row with the same key as it is; every database spells that its own way."""
        name = self.engine.dialect.name
        if name in ("sqlite", "postgresql"):
            insert = import_module(f"sqlalchemy.dialects.{name}").insert(table).on_conflict_do_nothing()
        else:
            insert = sql.insert(table).prefix_with("IGNORE")  # MySQL, MariaDB
        return insert.execution_options(preserve_rowcount=True)  # else PostgreSQL's driver says −1 for "none" and "one"

    def _in_parts(self, keys: Sequence[str], query: Any, connection: Any = None) -> list[Any]:
        """Rows of a query over many keys; databases limit how many a single one may name."""
        with nullcontext(connection) if connection is not None else self.engine.connect() as at:
            return [
                row
                for start in range(0, len(keys), _IN_ONE_QUERY)
                for row in at.execute(query(sql.column("key").in_(keys[start : start + _IN_ONE_QUERY]))).all()
            ]


def _claimed(part: Any) -> Any:
    return sql.select(_claims.c.key, _claims.c.owner, _claims.c.renewed).where(part)


def _rows(part: Any) -> Any:
    return sql.select(_records).where(part)


def _columns(record: Record) -> dict[str, Any]:
    """What stands beside the JSON of a record, to find it by."""
    own = {name: getattr(record, name) for name in ("key", "dataset", "variant", "fold", "seed")}
    return own | {"backbone": record.backbone.fingerprint}


def _record_of(row: Any) -> Record | Damaged:
    """The record of a row, after comparing it with its checksum and with the columns beside it."""
    columns = {column.key: value for column, value in zip(_records.columns, row, strict=True) if column.key != "body"}
    try:
        record = Record.from_json(loads(row.body))
        if (own := _columns(record)) != columns:
            name = next(name for name, value in own.items() if columns[name] != value)
            raise ValueError(f"its column {name} says {columns[name]!r}, and its content {own[name]!r}")
        return record
    except (ValueError, TypeError) as error:
        return Damaged(str(row.key), columns, str(error))


def _damaged(rows: Iterable[Any]) -> list[Damaged]:
    return [found for found in map(_record_of, rows) if isinstance(found, Damaged)]


def _whole(rows: Iterable[Any]) -> Iterator[Record]:
    """The records of rows; those that are damaged are named and left out."""
    for row in rows:
        found = _record_of(row)
        if isinstance(found, Record):
            yield found
        else:
            warnings.warn(f"{found}. It is left out; `bayescal bench` makes it again", BayescalWarning, stacklevel=3)


def _check_file(file: Path, url: str, create: bool) -> None:
    """Refuse an SQLite file that has to be there and is not, or is empty; make the folder of one that is to be made."""
    if not create and not file.exists():
        raise DataError(f"the database {shown(url)} does not exist; `bayescal bench` makes one")
    if not create and not file.stat().st_size:
        raise DataError(f"the database {shown(url)} is empty: it was cut short, or nothing was ever written to it")
    file.parent.mkdir(parents=True, exist_ok=True)


def made_together(make: Callable[[], Any], attempts: int = 6) -> Any:
    """What makes tables, tried again where another process made one between the look and the making."""
    for attempt in range(attempts):
        try:
            return make()
        except exc.DBAPIError as error:
            there = isinstance(error, exc.IntegrityError) or "already exists" in str(error)
            if not there or attempt + 1 == attempts:
                raise
            time.sleep(random.uniform(0, 0.2))


def _abandoned(owner: str, renewed: float, now: float) -> bool:
    """Whether the owner is dead: known at once on this machine, by silence elsewhere."""
    try:
        host, pid, start = owner.rsplit("/", 2)
        if host == socket.gethostname() and can_ask():
            return began(int(pid)) != start
        return now - renewed > STALE_SECONDS
    except (AttributeError, TypeError, ValueError):  # damaged: it is nobody's
        return True
