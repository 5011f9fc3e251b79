"""Content hashes of what lies behind URLs, kept between runs: whoever has its features need not fetch it again.

`remote-hashes.jsonl` in the cache folder has a line {"key", "sha256", "checksum"} per object; the key is its address,
its size and what its store changes with its content (an ETag or a time). It is only a cache: lines that cannot be read
and folders that cannot be written to do no harm.
"""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayescal.data.archives import split_member
from bayescal.data.remote import is_url, url_version
from bayescal.data.sources import ImageError, ImageSource, open_source
from bayescal.errors import DataError
from bayescal.features.decode_process import digests, reason
from bayescal.features.fetched import Fetched
from bayescal.features.threads import in_parallel, worker_threads
from bayescal.util.checksum import check_seal, sealed
from bayescal.util.jsonable import loads
from bayescal.util.progress import progress_bar

_AT_ONCE = 16  # requests: a store answers each after a while, however many there are


def is_remote(source: ImageSource) -> bool:
    return isinstance(source, str) and is_url(source)


class RemoteHashes:
    """The hashes known in a cache folder, and those that are found; without a folder, nothing is remembered."""

    def __init__(self, folder: Path | None):
        self._file = None if folder is None else folder / "remote-hashes.jsonl"
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._known: dict[str, str] = {}
        self._archives: dict[str, str | None] = {}
        if self._file is None:
            return
        try:
            with open(self._file, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
        except OSError:
            return

    def _read(self, line: str) -> None:
        try:
            entry = loads(line)
            check_seal(entry, required=True)
            if len(bytes.fromhex(entry["sha256"])) == 32:
                self._known[str(entry["key"])] = entry["sha256"]
        except (ValueError, KeyError, TypeError):  # cut short by a kill, or not as it was written: fetched again
            return

    def key(self, url: str) -> str | None:
        """What an object is remembered under; None: it cannot be, so its store need not be asked about it."""
        if self._file is None:
            return None
        member = split_member(url)
        try:
            version = url_version(url) if member is None else self._archive_version(member[0])
        except DataError:  # fetching it will say what is wrong
            return None
        return None if version is None else f"{url} {version}"

    def _archive_version(self, archive: str) -> str | None:
        """Asked for once: an archive has thousands of members."""
        with self._asking:
            if archive not in self._archives:
                self._archives[archive] = url_version(archive)
            return self._archives[archive]

    def get(self, key: str | None) -> bytes | None:
        found = None if key is None else self._known.get(key)
        return None if found is None else bytes.fromhex(found)

    def add(self, key: str | None, digest: bytes) -> None:
        """Remember a hash; one write, so that several processes may add."""
        if self._file is None or key is None:
            return
        line = json.dumps(sealed({"key": key, "sha256": digest.hex()})) + "\n"
        with self._lock:
            self._known[key] = digest.hex()
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "ab") as file:
                    file.write(line.encode())
            except OSError:  # read-only or full: the next run fetches again
                return


def digest_remote(
    sources: Sequence[ImageSource], remembered: RemoteHashes, fetched: Fetched, progress: bool = False
) -> tuple[np.ndarray, dict[int, str]]:
    """As `extract.digest_all`, of images some of which lie behind URLs; `fetched` is given what had to be fetched."""
    found = np.zeros((len(sources), 32), dtype=np.uint8)
    problems: dict[int, str] = {}

    def digest(i: int) -> None:
        source = content = sources[i]
        key = remembered.key(source) if isinstance(source, str) and is_url(source) else None
        known = remembered.get(key)
        if known is None:
            try:
                if is_remote(source):
                    content = open_source(source).read()
            except ImageError as error:
                problems[i] = reason(error, source)
                return
            known, wrong = digests([content])
            if wrong:
                problems[i] = wrong[0]
                return
            if isinstance(content, bytes) and is_remote(source):
                fetched.add(known, content)
            remembered.add(key, known)
        found[i] = np.frombuffer(known, dtype=np.uint8)

    title = "fetching" if progress else None
    with worker_threads(_AT_ONCE) as pool, progress_bar(title, len(sources), unit="images") as bar:
        for _ in in_parallel(pool, digest, range(len(sources)), 2 * _AT_ONCE):
            bar.advance()
    return found, problems
