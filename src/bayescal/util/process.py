"""Which process did something, and whether it is still there. A number alone is given again after a while."""

import os
import socket
from functools import lru_cache
from hashlib import sha256
from pathlib import Path


def process_identity() -> str:
    """Host, process number and when the process began."""
    return f"{socket.gethostname()}/{os.getpid()}/{began(os.getpid())}"


def process_mark() -> str:
    """The same in a few letters that a file name can have: "4fe0a1b2-1234-567890"."""
    return f"{_here()}-{os.getpid()}-{began(os.getpid())}"


def is_alive(mark: str) -> bool | None:
    """Whether the process of a mark is still there; None where this one cannot know: it belongs to another machine."""
    here, pid, start = mark.split("-")
    if here != _here() or not can_ask() or not start:
        return None
    return began(int(pid)) == start


def can_ask() -> bool:
    return Path("/proc/self/stat").exists()


def began(pid: int) -> str:
    """When a process began, in the system's own counting; "" where it is gone or the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return "" if fields[0] == "Z" else fields[19]


@lru_cache
def _here() -> str:
    """Where process numbers mean what they mean here: containers of one host name count on their own."""
    try:
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = ""
    return sha256(f"{socket.gethostname()}/{space}".encode()).hexdigest()[:8]
