"""Content hashes of what lies behind URLs, kept between runs: whoever has its features need not fetch it again.

`remote-hashes.jsonl` in the cache folder has a line {"key", "sha256"} per object; the key is its address, its size and
what its store changes with its content (an ETag or a time). It is only a cache: lines that cannot be read and folders
that cannot be written to do no harm.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence

from bayescal.data.archives import split_member
from bayescal.data.remote import is_url, url_version
from bayescal.data.sources import ImageSource
from bayescal.errors import DataError
from bayescal.features.cache_folder import default_folder


def is_remote(source: ImageSource) -> bool:
    return isinstance(source, str) and is_url(source)


class RemoteHashes:
    """The hashes known in the user's cache folder, and those that are found."""

    def __init__(self) -> None:
        self._file = default_folder() / "remote-hashes.jsonl"
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        try:
            with open(self._file, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
        except OSError:
            return

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            if len(bytes.fromhex(entry["sha256"])) == 32:
                self._known[str(entry["key"])] = entry["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):  # cut short by a kill
            return

    def find(self, sources: Sequence[ImageSource]) -> tuple[dict[int, bytes], dict[int, str]]:
        """Hashes that are known, by position; and the keys to remember the others under."""
        found, keys = {}, {}
        for i, source in enumerate(sources):
            if not isinstance(source, str) or not is_url(source) or (key := _key(source)) is None:
                continue
            if key in self._known:
                found[i] = bytes.fromhex(self._known[key])
            else:
                keys[i] = key
        return found, keys

    def add(self, hashes: Mapping[str, bytes]) -> None:
        """Remember hashes by key; one write, so that several processes may add."""
        lines = "".join(json.dumps({"key": key, "sha256": digest.hex()}) + "\n" for key, digest in hashes.items())
        with self._lock:
            self._known |= {key: digest.hex() for key, digest in hashes.items()}
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "ab") as file:
                    file.write(lines.encode())
            except OSError:  # read-only or full: the next run fetches again
                return


def _key(url: str) -> str | None:
    member = split_member(url)
    try:
        version = url_version(member[0] if member else url)
    except DataError:  # fetching it will say what is wrong
        return None
    return None if version is None else f"{url} {version}"
