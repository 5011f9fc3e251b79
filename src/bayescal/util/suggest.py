"""The nearest known name, for messages about a name that nobody knows."""

import difflib
from collections.abc import Iterable

CUTOFF = 0.5  # share of letters in common; below it, a suggestion puzzles more than it helps


def closest(name: str, known: Iterable[str], n: int = 1) -> list[str]:
    """At most `n` known names, the nearest first. Case, hyphens and underscores make no difference."""
    spelled: dict[str, str] = {}
    for candidate in known:
        spelled.setdefault(_key(candidate), candidate)
    return [spelled[key] for key in difflib.get_close_matches(_key(name), spelled, n=n, cutoff=CUTOFF)]


def did_you_mean(name: str, known: Iterable[str], n: int = 1) -> str:
    """A sentence to follow a full stop, with the space before it: " Did you mean 'coop'?"; "" if nothing is near."""
    near = closest(name, known, n)
    return f" Did you mean {_listed(near)}?" if near else ""


def or_did_you_mean(name: str, known: Iterable[str], n: int = 1, otherwise: str = ".") -> str:
    """The end of a sentence: "; did you mean 'epochs'?"; by default a full stop if nothing is near."""
    near = closest(name, known, n)
    return f"; did you mean {_listed(near)}?" if near else otherwise


def _listed(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)


def _key(name: str) -> str:
    return str(name).lower().replace("_", "-")
