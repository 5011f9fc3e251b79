"""Folder names that nobody chose for a class: dates, bare numbers, those that a camera gives."""

import re
from datetime import datetime

# fmt: off
_MONTHS = frozenset({
    "jan", "january", "feb", "february", "mar", "march", "apr", "april", "may", "jun", "june", "jul", "july", "aug",
    "august", "sep", "sept", "september", "oct", "october", "nov", "november", "dec", "december",
})
# fmt: on
_CAMERA_FOLDER = re.compile(r"(?i:dcim)|[1-9]\d\d[A-Z_][A-Z0-9_]{4}")  # DCIM, 100CANON, 101_PANA
_DATES = ("%Y-%m-%d", "%Y-%m", "%Y%m%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%Y-%j")


def kind_of(names: set[str]) -> str | None:
    """ "dates", "numbers", "a camera's folders", or None for names that are none of these throughout."""
    if all(map(_is_date, names)):
        return "dates"
    if all(map(_CAMERA_FOLDER.fullmatch, names)):
        return "a camera's folders"
    return "numbers" if all(re.fullmatch(r"\d+", name) for name in names) else None


def _is_date(name: str) -> bool:
    plain = re.sub(r"[\s._-]+", "-", name.strip().lower())
    words = plain.split("-")
    if any(word in _MONTHS for word in words) and all(word in _MONTHS or word.isdigit() for word in words):
        return True
    return re.fullmatch(r"(19|20)\d\d(-?(w\d\d?|q[1-4]))?|0[1-9]", plain) is not None or any(
        _parses(plain, form) for form in _DATES
    )


def _parses(text: str, form: str) -> bool:
    try:
        return 1900 <= datetime.strptime(text, form).year < 2100
    except ValueError:
        return False
