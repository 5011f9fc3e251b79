"""Small and read-only disks, where this user may mount them."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(path: Path, options: str) -> bool:
    command = shutil.which("mount")
    if command is None:
        return False
    given = [command, "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    return not subprocess.run(given, capture_output=True, check=False).returncode


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A disk of this size at a path."""
    path.mkdir()
    if not _mount(path, f"size={size}"):
        pytest.skip("a small disk cannot be mounted here (that needs root)")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # some database may still be open


def make_read_only(disk: Path) -> None:
    """From now on; nothing on the disk may be open for writing."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
