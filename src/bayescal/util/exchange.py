"""Two names exchanged in one step, where the system can: at no moment is either of them missing."""

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def exchange(one: Path, other: Path) -> bool:
    """Give each the name of the other; False, with nothing done, where the system cannot.

    That is on another system than Linux, and on file systems that have no exchange (some network disks, FAT).
    """
    rename = _renameat2()
    return rename is not None and rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


@lru_cache
def _renameat2() -> Any:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "renameat2", None)  # in glibc from 2.28
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function
