"""Images behind URLs: s3://, gs://, http://, memory:// whatever else fsspec opens. Streamed, not copied to disk."""

import os
import re
from typing import IO, Any

from bayescal.errors import DataError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_EXTRAS = {"s3": "bayescal[s3]", "s3a": "bayescal[s3]", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_EXTRAS |= {"http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub", "sftp": "paramiko", "ssh": "paramiko"}


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def read_url(url: str) -> bytes:
    """The content of an object."""
    system, path = _system(url)
    return _asked(url, lambda: system.cat_file(path))


def open_url(url: str) -> IO[bytes]:
    """An object as a file that can be sought in; parts of it are fetched as they are read."""
    system, path = _system(url)
    return _asked(url, lambda: system.open(path, "rb"))


def list_below(url: str) -> list[str]:
    """The names of all objects below a URL, relative to it."""
    system, path = _system(url)
    base = path.rstrip("/")
    # fsspec keeps listings as long as the process lives, and s3fs those below `path` also where it is told not to
    system.invalidate_cache(path)
    for folder in [known for known in system.dircache if known.startswith(f"{base}/")]:
        system.dircache.pop(folder, None)
    # `details` fill the listing's cache, so that nothing is asked for again object by object
    found = _asked(url, lambda: system.find(path, detail=True))
    return sorted(name[len(base) + 1 :] for name in found if name.startswith(f"{base}/"))


def is_url_folder(url: str) -> bool:
    """Whether objects lie below this name; a name with the suffix of a file is one, without asking."""
    if os.path.splitext(url.rstrip("/"))[1] and not url.endswith("/"):
        return False
    system, path = _system(url)
    return bool(_asked(url, lambda: system.isdir(path)))


def url_version(url: str) -> str | None:
    """What changes when the content does: an ETag, or time and size; None where the server says nothing of the kind."""
    system, path = _system(url)
    about = _asked(url, lambda: system.info(path))
    known = next((about[key] for key in ("ETag", "etag", "md5Hash", "content_md5") if about.get(key)), None)
    when = next(
        (about[key] for key in ("LastModified", "mtime", "updated", "last_modified", "created") if about.get(key)), None
    )
    return None if known is None and when is None else f"{known or when} {about.get('size')}"


def join(base: str, name: str) -> str:
    """A name relative to a folder or a URL, as a whole one."""
    if is_url(name):
        return name
    return f"{base.rstrip('/')}/{name}" if is_url(base) else os.path.abspath(os.path.join(base, name))


def _system(url: str) -> "tuple[Any, str]":
    try:
        import fsspec
    except ImportError as error:
        raise DataError(f"{url}: reading URLs needs the package fsspec: pip install fsspec.") from error
    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.url_to_fs(url)
    except ImportError as error:
        raise DataError(
            f"{url}: {scheme}:// needs another package: pip install '{_EXTRAS.get(scheme, scheme)}'."
        ) from error
    except ValueError as error:
        raise DataError(f"{url}: no way is known to read {scheme}:// ({error}).") from error


def _asked(url: str, ask: Any) -> Any:
    try:
        return ask()
    except FileNotFoundError as error:
        raise DataError(f"{url}: there is no such file.") from error
    except PermissionError as error:
        raise DataError(f"{url}: access is denied ({error}). Check the credentials.") from error
    except Exception as error:  # every store has errors of its own
        if isinstance(error, MemoryError):
            raise
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        raise DataError(f"{url}: could not be fetched ({reason}).") from error
