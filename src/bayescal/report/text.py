"""Texts as experiments write them: paragraphs, `code` between backticks, and names to make addresses of."""

import re
from collections.abc import Iterator


def paragraphs(text: str) -> list[str]:
    """Parts separated by empty lines, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def spans(text: str) -> Iterator[tuple[bool, str]]:
    """Pieces of a text and whether each is code, which stands between backticks."""
    for i, piece in enumerate(re.split(r"`([^`]+)`", text)):
        if piece:
            yield i % 2 == 1, piece


def slug(*names: str) -> str:
    """Names as an address or a file name: letters of ASCII, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-") or "x"


class Addresses:
    """Slugs, each given once: names that would collide are numbered."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, *names: str) -> str:
        wanted = address = slug(*names)
        number = 1
        while address in self._taken:
            number += 1
            address = f"{wanted}-{number}"
        self._taken.add(address)
        return address
