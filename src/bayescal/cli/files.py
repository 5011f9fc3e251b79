"""Writing results: whole or not at all."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from bayescal.errors import BayescalError
from bayescal.estimator.artifact import check_place
from bayescal.util import atomic


def check_file(path: Path) -> None:
    """Refuse, before any work is done, a path where no file can be written."""
    if path.is_dir():
        raise BayescalError(f"{path} is a folder: expected the name of a file to write")
    path = atomic.replaceable(path)
    if not path.parent.is_dir():
        raise BayescalError(f"{path}: there is no folder {path.parent} to write to")
    check_place(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it; an earlier one is replaced."""
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise BayescalError(f"could not write {path}: {error.strerror or error}") from error


def check_folder(path: Path, force: bool, ours: Collection[str], what: str) -> None:
    """Refuse a folder that exists, or, with --force, one that holds anything but our files of `what`."""
    check_place(path.absolute().parent)
    if not path.exists():
        return
    if not force:
        raise BayescalError(f"{path} exists already: choose another name with -o, or replace it with --force")
    strangers = sorted(p.name for p in path.iterdir() if p.name not in ours) if path.is_dir() else [path.name]
    if strangers:
        raise BayescalError(f"{path} holds something else than {what} ({strangers[0]}): it is not replaced")


@contextmanager
def written_into(folder: Path) -> Iterator[None]:
    """Makes the folder; what goes wrong while files are written into it is a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise BayescalError(f"could not write into {folder}: {error.strerror or error}") from error
