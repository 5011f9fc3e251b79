"""How far a bench is: one bar over all its searches, with the time left."""

import time
from collections.abc import Hashable

from bayescal.util.progress import Bar

WAIT_SECONDS = 2.0  # between looks at what another process has finished


class SearchProgress:
    """Epochs of all searches under one bar.

    Searches that have not begun count as large as the mean of the others, so that the time left is fair.
    """

    def __init__(self, bar: Bar, searches: int):
        self.bar, self.searches = bar, searches
        self.sizes: dict[Hashable, int] = {}

    def begin(self, search: Hashable, title: str, epochs: int) -> None:
        """A search, or the next part of it, with so many epochs × runs to train."""
        self.sizes[search] = self.sizes.get(search, 0) + epochs
        begun = len(self.sizes)
        total = sum(self.sizes.values()) * self.searches / begun
        self.bar.rename(f"{title} ({begun} of {self.searches})", max(total, 1))

    def advance(self, epochs: float) -> None:
        self.bar.advance(epochs)

    def wait(self, runs: int) -> None:
        self.bar.rename(f"waiting for {runs} runs of another process")
        time.sleep(WAIT_SECONDS)
