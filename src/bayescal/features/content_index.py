"""What images are, by content: 40 bytes of memory an image, and which of them are copies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayescal.data.sources import ImageSource
from bayescal.features.extract import digest_all, hex_of
from bayescal.features.store import keys_of


@dataclass(frozen=True, eq=False)
class ContentIndex:
    """The contents of N images, in the order given."""

    digests: np.ndarray  # (N, 32) uint8, SHA-256; zeros where an image could not be read
    first: np.ndarray  # (N,) int64: the first image of the same content; −1 where it could not be read
    problems: dict[int, str]  # images that could not be read: position → reason

    @classmethod
    def of(cls, sources: Sequence[ImageSource], workers: int) -> "ContentIndex":
        return cls.known(*digest_all(sources, workers))

    @classmethod
    def known(cls, digests: np.ndarray, problems: dict[int, str]) -> "ContentIndex":
        """From hashes that were computed before (`digest_all`)."""
        return cls(digests, _first_of(digests, list(problems)), problems)

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, images: np.ndarray) -> "ContentIndex":
        """The contents of some images, by number (n,), counted anew."""
        problems = {new: self.problems[old] for new, old in enumerate(images.tolist()) if old in self.problems}
        return self.known(self.digests[images], problems)

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
