"""Turning folder and label names into the words that a text tower is shown."""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from bayescal.errors import DataError
from bayescal.util.suggest import did_you_mean

# "001.Black_footed_Albatross": the number is not part of the name. "3.5 inch" keeps its number.
_NUMBER_PREFIX = re.compile(r"^(?:\d+\.\s*)+(?=[^\d\s.])")


def to_words(name: str) -> str:
    """Write a name as words: "art_painting" → "art painting", "RealWorld" → "real world"."""
    text = unicodedata.normalize("NFC", name)
    text = " ".join(re.sub(r"[_-]", " ", text).split())
    text = _NUMBER_PREFIX.sub("", text)
    # Lower-casing can leave letters and accents apart ("İ"), so they are put together again at the end.
    return unicodedata.normalize("NFC", _split_camel_case(text).lower())


def _split_camel_case(text: str) -> str:
    pieces = []
    for index, letter in enumerate(text):
        before, after = text[index - 1 : index], text[index + 1 : index + 2]
        starts_word = letter.isupper() and (before.islower() or (before.isupper() and after.islower()))
        pieces.append(f" {letter}" if starts_word else letter)
    return "".join(pieces)


def check_names(names: Sequence[str], kind: str, words: Sequence[str] | None = None) -> None:
    """Refuse names that no text tower could tell apart.

    `kind` is "class" or "environment"; `words` is what the text tower will be shown, `to_words` unless given.
    """
    words = [to_words(name) for name in names] if words is None else words
    first_with: dict[str, str] = {}
    for name, shown in zip(names, words, strict=True):
        if _has_control_characters(name) or _has_control_characters(shown):
            raise DataError(f"The {kind} name {name!r} contains control characters. Rename it.")
        if not shown.strip():
            raise DataError(f"The {kind} name {name!r} has no words in it. Rename it, or give words for it.")
        same = to_words(shown)
        if same in first_with:
            raise DataError(
                f"The {kind} names {first_with[same]!r} and {name!r} are the same to the model: both read "
                f'"{shown}". Give them different words, or merge them.'
            )
        first_with[same] = name


def choose_words(names: Sequence[str], given: Mapping[str, str] | None, kind: str) -> tuple[str, ...]:
    """Pick each name's words: the user's where given, `to_words` otherwise; and check them all."""
    given = given or {}
    for key, value in given.items():
        if key not in names:
            more = ", …" if len(names) > 20 else ""
            hint = did_you_mean(key, names) or f" The names are: {', '.join(names[:20])}{more}."
            raise DataError(f"{kind}_words: there is no {kind} {key!r}.{hint}")
        if not isinstance(value, str):
            raise DataError(f"{kind}_words: the words for {key!r} must be text; found {value!r}.")
    words = tuple(" ".join(given[name].split()) if name in given else to_words(name) for name in names)
    check_names(names, kind, words)
    return words


def _has_control_characters(text: str) -> bool:
    # Cc: control characters; Cs: bytes of a file name that are not valid text
    return any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
