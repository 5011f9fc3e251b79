"""Memory that was freed, given back to the system: glibc keeps it, in pieces that passes of other sizes do not fit."""

import ctypes
import sys
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _trim() -> Any:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):  # another C library, which has no such function
        return None


def give_back_memory() -> None:
    """Milliseconds of work; nothing where the C library is not glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)
