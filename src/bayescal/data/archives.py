"""Images in .zip and .tar files, read where they lie: nothing is unpacked beside them.

A member is named as if the archive were a folder: "photos.zip/dog/1.jpg", "s3://bucket/shard-000.tar/0001.jpg". A
compressed .tar cannot be read in the middle: it is unpacked once, into a temporary file that ends with the process.
"""

import bz2
import gzip
import lzma
import os
import posixpath
import re
import shutil
import struct
import tarfile
import tempfile
import threading
import time
import weakref
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Protocol

from bayescal.data.remote import is_url, open_url, url_version
from bayescal.errors import DataError

_SUFFIX = re.compile(r"\.(?:zip|tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))(?=/|$)", re.IGNORECASE)
_COMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": lambda stream: bz2.BZ2File(stream),
    b"\xfd7zXZ": lambda stream: lzma.LZMAFile(stream),  # noqa: SIM115 (who asked closes it)
}
_LARGEST = 1 << 30  # bytes of a member: an image file is smaller, and it is read as a whole
_KEPT_OPEN = 8
_TRUSTED = 60.0  # seconds
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,  # names that are not the UTF-8 that they are marked as, numbers that are none
    LookupError,  # a directory that speaks of what is not there
    OverflowError,
    struct.error,
)


def is_archive_name(path: str) -> bool:
    """Whether a file's name says that it is an archive."""
    found = _SUFFIX.search(path)
    return found is not None and [*_SUFFIX.finditer(path)][-1].end() == len(path)


def stem(path: str) -> str:
    """ "photos.tar.gz" → "photos"."""
    return _SUFFIX.sub("", os.path.basename(path))


def split_member(path: str) -> tuple[str, str] | None:
    """ "photos.zip/dog/1.jpg" → ("photos.zip", "dog/1.jpg"); None for what does not lie in an archive."""
    for found in _SUFFIX.finditer(path):
        archive, member = path[: found.end()], path[found.end() + 1 :]
        if member and (is_url(archive) or os.path.isfile(archive)):
            return archive, member
    return None


def members(archive: str) -> Mapping[str, object]:
    """The files in an archive, by name."""
    with _reported(archive):
        return _opened(archive).members


def left_out_of(archive: str) -> list[tuple[str, str]]:
    """What is in an archive and is no file that can be read: name and reason."""
    with _reported(archive):
        return _opened(archive).left_out


def read_member(archive: str, name: str) -> bytes:
    """The content of a file in an archive."""
    with _reported(archive):
        opened = _opened(archive)
        member = opened.members.get(name)
        if member is None:
            raise DataError(f"{archive}/{name}: there is no such file in {os.path.basename(archive)}.")
        if member.size > _LARGEST:
            raise DataError(f"{archive}/{name}: is too large for an image ({member.size / 1e9:.1f} GB).")
        return opened.read(member)


class _Member(NamedTuple):
    key: int  # where it begins, or its number
    size: int


class _Archive(Protocol):
    members: dict[str, _Member]
    left_out: list[tuple[str, str]]

    def read(self, member: _Member) -> bytes: ...


class _Zip:
    def __init__(self, stream: IO[bytes]):
        self._content = zipfile.ZipFile(stream)  # has a lock of its own
        weakref.finalize(self, stream.close)
        self._infos = self._content.infolist()
        self.members = {
            _plain(info.filename): _Member(number, info.file_size)
            for number, info in enumerate(self._infos)
            if info.filename and not info.is_dir()
        }
        self.left_out: list[tuple[str, str]] = []

    def read(self, member: _Member) -> bytes:
        return self._content.read(self._infos[member.key])


class _Tar:
    def __init__(self, stream: IO[bytes]):
        self._stream, self._lock = stream, threading.Lock()
        weakref.finalize(self, stream.close)
        self.members: dict[str, _Member] = {}
        self.left_out: list[tuple[str, str]] = []
        links: dict[str, str] = {}  # to names in the archive
        with tarfile.open(fileobj=stream, mode="r:") as content:
            for info in content:
                name = _plain(info.name)
                if info.isreg() and not info.issparse():
                    self.members[name] = _Member(info.offset_data, info.size)
                    links.pop(name, None)
                elif info.islnk() or info.issym():
                    links[name] = _plain(info.linkname) if info.islnk() else _beside(name, info.linkname)
                elif not info.isdir():
                    self.left_out.append((name, "a sparse file" if info.issparse() else "neither a file nor a folder"))
        for name in links:
            if (end := _end_of(name, links)) in self.members:
                self.members[name] = self.members[end]
            else:
                self.left_out.append((name, "a link to no file in the archive"))

    def read(self, member: _Member) -> bytes:
        with self._lock:
            self._stream.seek(member.key)
            content = self._stream.read(member.size)
        if len(content) < member.size:
            raise EOFError("it ends too early")
        return content


def _plain(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _beside(name: str, target: str) -> str:
    """What a symbolic link in an archive leads to; what lies outside is no name in it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def _end_of(name: str, links: Mapping[str, str]) -> str:
    """Where links lead that lead to links."""
    seen = set()
    while name in links and name not in seen:
        seen.add(name)
        name = links[name]
    return name


_open: "OrderedDict[tuple[object, ...], _Archive]" = OrderedDict()
_lock = threading.Lock()
_asked: dict[str, tuple[float, str | None]] = {}  # when, and what was answered


def _opened(archive: str) -> _Archive:
    """The archive with the list of what is in it; a few stay open. One that has changed is opened anew."""
    with _lock:
        # Of this process: two that share an open file would move each other's position in it.
        key = (os.getpid(), archive, _remote_version(archive) if is_url(archive) else _version(archive))
        if key in _open:
            _open.move_to_end(key)
        else:
            _open[key] = _read_index(open_url(archive) if is_url(archive) else open(archive, "rb"))  # noqa: SIM115
            if len(_open) > _KEPT_OPEN:
                _open.popitem(last=False)
        return _open[key]


def _remote_version(archive: str) -> str | None:
    """Asked for again only after a while: an archive has thousands of members."""
    when, version = _asked.get(archive, (-_TRUSTED, None))
    if time.monotonic() - when > _TRUSTED:
        when, version = _asked[archive] = time.monotonic(), url_version(archive)
    return version


def _version(archive: str) -> tuple[int, int, int]:
    if not os.path.isfile(archive):  # a named pipe would block for ever
        raise DataError(f"{archive}: there is no such file.")
    status = os.stat(archive)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_index(stream: IO[bytes]) -> _Archive:
    head = stream.read(6)
    stream.seek(0)
    if head.startswith(b"PK"):
        return _Zip(stream)
    for magic, unpack in _COMPRESSED.items():
        if head.startswith(magic):
            whole = tempfile.TemporaryFile(prefix="bayescal-tar-")  # noqa: SIM115 (open as long as the archive)
            with stream, unpack(stream) as content:
                shutil.copyfileobj(content, whole, 1 << 20)
            whole.seek(0)
            return _Tar(whole)
    return _Tar(stream)


@contextmanager
def _reported(archive: str) -> Iterator[None]:
    """Whatever is wrong with an archive, in words."""
    try:
        yield
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{archive}: is damaged or protected ({error}). Copy or download it again.") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be opened ({error.strerror or error}).") from error
