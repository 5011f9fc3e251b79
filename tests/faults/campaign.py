"""What the campaign does to files and processes: flips, cuts, kills; at places and moments drawn from a seed."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from bayescal.cli import main

ABNORMAL = 100  # the exit code of a child that did not end with SystemExit


def spoil(content: bytes, r: random.Random) -> bytes:
    """The content with a bit flipped, an end cut off, a part gone, zeroed or repeated."""
    damaged, at = bytearray(content), r.randrange(max(1, len(content)))
    end = min(len(content), at + r.choice((1, 8, 512)))
    kind = r.choice(("flip", "flip", "cut", "zero", "gone", "twice"))
    if kind == "flip":
        damaged[at] ^= 1 << r.randrange(8)
    elif kind == "cut":
        del damaged[at:]
    elif kind == "zero":
        damaged[at:end] = bytes(end - at)
    elif kind == "gone":
        del damaged[at:end]
    else:
        damaged[at:at] = damaged[at:end]
    return bytes(damaged)


def in_child(*arguments: Any, kill_after: float | None = None) -> tuple[int, float]:
    """`bayescal ARGUMENTS` in a process of its own, killed after so many seconds: its exit code, and how long it took.

    Forked, because importing everything takes longer than what is tested.
    """
    started = time.monotonic()
    if (child := os.fork()) == 0:
        code = ABNORMAL
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            os._exit(code)
    end = started + (120.0 if kill_after is None else kill_after)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), time.monotonic() - started
        time.sleep(0.002)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # so early that it has no group of its own yet
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.monotonic() - started


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
