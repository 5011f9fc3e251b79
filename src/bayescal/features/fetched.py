"""What was fetched to be hashed, until it is encoded: an image behind a URL is fetched once."""

import threading

from bayescal.data.image_memory import room

SHARE = 4  # of the memory that there is for images, one part in so many


class Fetched:
    """The content of images by SHA-256, as much of it as there is room for; the others are fetched again."""

    def __init__(self, most: int | None = None):
        self._most, self._held = most, 0
        self._contents: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def add(self, digest: bytes, content: bytes) -> None:
        with self._lock:
            if self._most is None:
                self._most = room.limit() // SHARE
            if digest not in self._contents and self._held + len(content) <= self._most:
                self._contents[digest] = content
                self._held += len(content)

    def get(self, digest: bytes) -> bytes | None:
        return self._contents.get(digest)

    def clear(self) -> None:
        """Everything that was held has been encoded."""
        with self._lock:
            self._contents.clear()
            self._held = 0
