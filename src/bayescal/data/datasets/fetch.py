"""Downloading and unpacking, only when somebody asked for it. Files appear under their names when they are whole."""

import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from bayescal.errors import DataError
from bayescal.util.atomic import folder_beside, replacing
from bayescal.util.progress import progress_bar

_BLOCK = 1 << 20
_PATIENCE = 60  # seconds without an answer


def fetch(address: str, file: Path) -> Path:
    """Download one file; one that is there already is left as it is."""
    if file.exists():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as draft:
            _download(address, draft, file.name)
    except (OSError, HTTPException, ValueError) as error:  # a refused address is an OSError too
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{address}: could not be downloaded ({reason}). Download it by other means and put it at {file}."
        ) from error
    return file


def _download(address: str, draft: Path, title: str) -> None:
    with urllib.request.urlopen(address, timeout=_PATIENCE) as answer, open(draft, "wb") as stream:
        expected = int(answer.headers.get("Content-Length") or 0)
        with progress_bar(_shown(title), expected or None, amount="bytes") as bar:
            while block := answer.read(_BLOCK):
                stream.write(block)
                bar.advance(len(block))
        if expected and stream.tell() != expected:
            raise OSError(f"{stream.tell():,} of {expected:,} bytes came")


def _shown(title: str) -> str | None:
    return title if sys.stderr.isatty() else None


def is_archive(path: Path) -> bool:
    """Tell whether a file is a .zip or .tar, packed or not, by its content."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def unpacked_name(archive: Path) -> str:
    """ "PACS.zip" → "PACS", "VLCS.tar.gz" → "VLCS"."""
    name = archive.name
    for suffix in (".gz", ".bz2", ".xz", ".tar", ".tgz", ".zip"):
        name = name.removesuffix(suffix)
    return name if name != archive.name else f"{name}-unpacked"


def unpack(archive: Path, target: Path, inner: str = "") -> Path:
    """Unpack into a new folder, or only the folder `inner` of the archive; nothing outside it is ever written.

    Links and devices in an archive are left out, and paths that lead elsewhere are refused.
    """
    try:
        with folder_beside(target) as temporary:
            draft = temporary / "content"
            draft.mkdir()
            _extract(archive, draft)
            found = draft / inner
            if not found.is_dir():
                raise DataError(f"{archive}: has no folder {inner} in it. Is it the right file?")
            os.rename(found, target)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{archive}: is damaged or protected ({error}). Download it again.") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be unpacked to {target} ({error.strerror or error}).") from error
    return target


class _Member(NamedTuple):
    name: str
    size: int
    open: Callable[[], IO[bytes]]


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            _write_all(archive, list(_zip_members(content)), folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as content:
            _write_all(archive, list(_tar_members(content)), folder)
    else:
        raise DataError(f"{archive}: is neither a .zip nor a .tar file. Download it again, or unpack it yourself.")


def _zip_members(content: zipfile.ZipFile) -> Iterator[_Member]:
    for info in content.infolist():
        if not info.is_dir():
            yield _Member(info.filename, info.file_size, lambda info=info: content.open(info))


def _tar_members(content: tarfile.TarFile) -> Iterator[_Member]:
    for info in content:
        if info.isfile():
            yield _Member(info.name, info.size, lambda info=info: _file(content, info))


def _file(content: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    source = content.extractfile(info)
    assert source is not None, f"{info.name} is a file"
    return source


def _write_all(archive: Path, members: list[_Member], folder: Path) -> None:
    total, free = sum(member.size for member in members), shutil.disk_usage(folder).free
    if total > free:
        raise DataError(
            f"{archive}: needs {total / 1e9:.1f} GB, and {folder.parent.parent} has {free / 1e9:.1f} GB left."
        )
    with progress_bar(_shown(archive.name), len(members)) as bar:
        for member in members:
            target = folder / _safe_path(archive, member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, open(target, "wb") as stream:
                shutil.copyfileobj(source, stream, _BLOCK)
            bar.advance()


def _safe_path(archive: Path, name: str) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]) or "\0" in name:
        raise DataError(f"{archive}: the path {name!r} in it leads outside. It was not unpacked.")
    return str(path)
