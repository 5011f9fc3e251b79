"""What images are, by content: 40 bytes of memory an image, and which of them are copies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayescal.data.sources import ImageSource
from bayescal.features.extract import digest_all, hex_of
from bayescal.features.fetched import Fetched
from bayescal.features.store import keys_of


@dataclass(frozen=True, eq=False)
class ContentIndex:
    """The contents of N images, in the order given."""

    digests: np.ndarray  # (N, 32) uint8, SHA-256; zeros where an image could not be read
    first: np.ndarray  # (N,) int64: the first image of the same content; −1 where it could not be read
    problems: dict[int, str]  # images that could not be read: position → reason
    fetched: Fetched = field(default_factory=Fetched)  # what lies behind URLs, where it had to be fetched

    @classmethod
    def of(
        cls, sources: Sequence[ImageSource], workers: int, cache: Path | None = None, progress: bool = False
    ) -> "ContentIndex":
        """`cache`: the folder that remembers the hashes of what lies behind URLs."""
        fetched = Fetched()
        return cls.known(*digest_all(sources, workers, cache, fetched, progress), fetched)

    @classmethod
    def known(cls, digests: np.ndarray, problems: dict[int, str], fetched: Fetched | None = None) -> "ContentIndex":
        """From hashes that were computed before (`digest_all`)."""
        return cls(digests, _first_of(digests, list(problems)), problems, fetched or Fetched())

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, images: np.ndarray) -> "ContentIndex":
        """The contents of some images, by number (n,), counted anew."""
        problems = {new: self.problems[old] for new, old in enumerate(images.tolist()) if old in self.problems}
        return self.known(self.digests[images], problems, self.fetched)

    def held(self, image: int) -> bytes | None:
        """The content of an image that was fetched, as long as there is room for it."""
        return self.fetched.get(self.digests[image].tobytes())

    @property
    def distinct(self) -> np.ndarray:
        """The first image of every content, ascending."""
        return np.flatnonzero(self.first == np.arange(len(self)))

    def keys(self, images: np.ndarray, views: int) -> np.ndarray:
        """Keys of views 0 … V−1 of images (n,), images outermost: (n · V,)."""
        return keys_of(self.digests[images], range(views))

    def hexes(self) -> list[str | None]:
        return hex_of(self.digests, self.problems)


def _first_of(digests: np.ndarray, unreadable: list[int]) -> np.ndarray:
    words = digests.view(np.uint64)  # (N, 4)
    order = np.lexsort(words.T)  # stable: of equal images, the first comes first
    new = np.ones(len(order), dtype=bool)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1] if len(order) else order
    first[unreadable] = -1
    return first
