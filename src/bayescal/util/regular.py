"""Reading files that have to be files: a named pipe that nobody writes to would be waited for without end."""

import errno
import os
import stat
from pathlib import Path


def check_regular(path: Path) -> Path:
    """The path of a file that can be read to its end; an `OSError` for a pipe, a socket or a device."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # for a folder the system has an error of its own
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and no file", str(path))
    return path


def read_file(path: Path) -> bytes:
    return check_regular(path).read_bytes()
