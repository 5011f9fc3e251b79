"""Where an image comes from: a file, a member of an archive, a URL, or bytes; all of them as a stream of bytes.

"photos/dog/1.jpg"              a file
"photos.zip/dog/1.jpg"          a member of an archive (`data/archives.py`), named as if the archive were a folder
"s3://bucket/photos/1.jpg"      whatever fsspec opens (`data/remote.py`)
b"\\xff\\xd8…", BytesIO           the file itself
"""

import io
import os
from typing import IO

import numpy as np
from PIL import Image

from bayescal.data.archives import read_member, split_member
from bayescal.data.remote import is_url, read_url
from bayescal.errors import DataError
from bayescal.util.harmless import one_line

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | np.ndarray


_EMPTY = "{}: the file is empty (0 bytes). Copy it again from where it came from."


class ImageError(DataError):
    """An image that cannot be used; the message names it and says why."""


def open_source(source: ImageSource) -> IO[bytes]:
    """The bytes of an image file from the beginning, to be closed by who asks. Raises `ImageError`."""
    if isinstance(source, str | os.PathLike):
        return _open_named(os.fspath(source))
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
    elif isinstance(source, io.BytesIO):  # its position belongs to the caller, and another thread may read it too
        content = source.getvalue()
    elif not isinstance(source, Image.Image | np.ndarray) and hasattr(source, "read"):
        content = _read_again(source)
    else:
        raise ImageError(
            "An image must be a path, a URL, bytes, a file object, a Pillow image or a numpy array; "
            f"found {type(source).__name__}."
        )
    return _not_empty(content, name_of_source(source))


def as_content(source: ImageSource) -> ImageSource:
    """A file object as its bytes, since it can be read once only; all else as it is."""
    if hasattr(source, "read") and not isinstance(source, Image.Image | np.ndarray | memoryview | os.PathLike):
        return open_source(source).read()
    return source


def is_local_file(source: ImageSource) -> bool:
    """Whether other processes on this machine can read it as well as this one."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = os.fspath(source)
    return not is_url(path) and split_member(path) is None


def name_of_source(source: ImageSource) -> str:
    """What to call an image in a message."""
    if isinstance(source, str | os.PathLike):
        return one_line(os.fspath(source))
    if isinstance(source, Image.Image):
        return f"the image {one_line(str(getattr(source, 'filename', ''))) or 'object'}"
    if isinstance(source, np.ndarray):
        return "the array"
    return "the bytes" if isinstance(source, bytes | bytearray | memoryview | io.BytesIO) else "the file object"


def _open_named(path: str) -> IO[bytes]:
    try:
        if member := split_member(path):
            return _not_empty(read_member(*member), path)
        if is_url(path):
            return _not_empty(read_url(path), path)
    except DataError as error:
        raise ImageError(str(error)) from error
    if not os.path.exists(path):
        raise ImageError(f"{path}: there is no such file.")
    if not os.path.isfile(path):  # a named pipe would block for ever
        raise ImageError(f"{path}: is not a file.")
    if os.path.getsize(path) == 0:
        raise ImageError(_EMPTY.format(path))
    return open(path, "rb")


def _not_empty(content: bytes, name: str) -> IO[bytes]:
    if not content:
        raise ImageError(_EMPTY.format(name))
    return io.BytesIO(content)


def _read_again(stream: IO[bytes]) -> bytes:
    try:
        if stream.seekable():
            stream.seek(0)
        content = stream.read()
    except (OSError, ValueError) as error:  # closed, or not open for reading
        raise ImageError(f"the file object cannot be read ({error}).") from error
    if not isinstance(content, bytes):
        raise ImageError("the file object gives text: open it with mode 'rb'.")
    return content
