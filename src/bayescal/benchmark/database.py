"""What a database says when it cannot be written or read, in words for the user; and what survives a power cut."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sql
from sqlalchemy import event, exc

from bayescal.errors import BayescalError, DataError

_DAMAGED = (
    "it is damaged. `bayescal records --verify` says what can be read; put a copy in its place, or move it away, and "
    "the same command makes it anew"
)
# What SQLite, PostgreSQL and MySQL say (in part), and what to do about it.
_SAID = {
    ("disk is full", "diskfull", "no space left", "disk i/o error", "errno: 28"): (
        "the disk is full, or the file may not grow: make room and run the same command again. Finished runs are kept"
    ),
    ("readonly", "read-only", "permission denied", "insufficientprivilege"): (
        "it may not be written to: change its permissions and those of its folder, or choose another with -o or "
        "--storage"
    ),
    ("database is locked", "lock wait timeout"): (
        "another process holds it for more than a minute: wait for it or stop it, and run the same command again"
    ),
    # A damaged table definition lacks a column or spells it in another way; its message may not be text either.
    ("malformed", "not a database", "corrupt", "no such column", "no such table"): _DAMAGED,
    ("undefined", "unicodedecode"): _DAMAGED,
    ("unable to open", "no such file"): "it cannot be opened: is its folder still there?",
    ("connection refused", "server closed", "could not connect", "gone away", "adminshutdown"): (
        "the server does not answer: the same command continues when it does. Finished runs are kept"
    ),
}


def shown(url: str) -> str:
    """An address without its password."""
    try:
        return sql.make_url(url).render_as_string(hide_password=True)
    except exc.ArgumentError:
        return repr(url)


def in_words(url: str, error: BaseException) -> DataError | None:
    """The error for the user, where the database or its disk refuses; None where it is a mistake of the program."""
    original = getattr(error, "orig", None) or error
    said = f"{type(original).__name__}: {original}".lower()
    for parts, advice in _SAID.items():
        if any(part in said for part in parts):
            return DataError(f"the database {shown(url)}: {advice} ({first_line(original)})")
    if _says_damage(original):
        return DataError(f"the database {shown(url)}: {_DAMAGED} ({first_line(original)})")
    return None


def _says_damage(error: BaseException) -> bool:
    """Whether SQLite refuses a file in words of its own: what a damaged one makes it say cannot be listed."""
    refused = type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError, sqlite3.DataError)
    return refused and "already exists" not in str(error)  # which is said to who comes second (`store.made_together`)


@contextmanager
def search_in_words(url: str) -> Iterator[None]:
    """Within the block, what Optuna makes of tables that are damaged is an error for the user."""
    try:
        yield
    except (BayescalError, OSError):
        raise
    except Exception as error:  # of Optuna, SQLAlchemy or Alembic: which one, a flipped bit decides
        said = f"{type(error).__name__}: {first_line(error)}"
        raise in_words(url, error) or DataError(
            f"the database {shown(url)}: its trials cannot be read ({said}). Take the records over into another folder "
            "(`bayescal records NEW --add THIS`) and go on there"
        ) from error


def prepare(engine: sql.Engine, url: str) -> sql.Engine:
    """Let an engine speak to the user, and an SQLite file survive a power cut and show text that is damaged."""

    @event.listens_for(engine, "handle_error")
    def _(context: Any) -> None:
        if (error := in_words(url, context.original_exception)) is not None:
            raise error from context.original_exception

    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _(connection: Any, _record: Any) -> None:
            connection.text_factory = lambda content: content.decode(errors="replace")
            connection.execute("PRAGMA synchronous = EXTRA")  # a commit is on the disk with the end of its journal

    return engine


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
