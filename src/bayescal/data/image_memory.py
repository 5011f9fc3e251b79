"""How much memory images may take while they are decoded, all threads together.

A picture of 100 million pixels takes 0.4 GB once it is decoded, and twice that while it is converted. Sixteen threads
that met sixteen at once would take the machine down: whoever would exceed the total waits until others are done.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bayescal.data.sources import ImageError
from bayescal.util.free_memory import free_bytes

SHARE = 0.5  # of what is free
MOST = 4 * 2**30  # more at once is not faster
ALWAYS = 256 * 2**20  # one image of so many bytes is always read: 32 million pixels, more than most cameras give


class NoRoom(ImageError):
    """There is too little memory for an image here."""


class Room:
    """Bytes that decoded images may take together: a share of what is free, or what `limit_to` said."""

    def __init__(self) -> None:
        self._most: int | None = None
        self._held = 0
        self._changed = threading.Condition()

    def limit_to(self, most: int) -> None:
        """For a process that shares the machine with others of its kind: its part of what there is."""
        self._most = most

    def limit(self) -> int:
        """Bytes that there are for images now, those included that are held."""
        return self._most or max(ALWAYS, min(MOST, int(SHARE * (free_bytes() + self._held))))

    @contextmanager
    def hold(self, need: int) -> Iterator[None]:
        """Wait until `need` bytes are free for images, and have them until the block ends. One image always gets in."""
        with self._changed:
            while self._held and self._held + need > self.limit():
                self._changed.wait()
            self._held += need
        try:
            yield
        finally:
            with self._changed:
                self._held -= need
                self._changed.notify_all()


room = Room()
