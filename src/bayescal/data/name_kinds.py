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
_DAYS = ("%Y-%m-%d", "%Y%m%d")
_DATES = (*_DAYS, "%Y-%m", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%Y-%j")
_TIMES = tuple(f"{day}{gap}{time}" for day in _DAYS for gap in "-t" for time in ("%H%M%S", "%H%M", "%H-%M-%S", "%H-%M"))
_MONTH, _NUMBER = re.compile(r"0[1-9]"), re.compile(r"\d+")
_SEASON = r"(spring|summer|autumn|fall|winter)"
_YEAR = re.compile(rf"(19|20)\d\d(-?(w\d\d?|q[1-4]|{_SEASON}))?|{_SEASON}-?(19|20)\d\d")


def kind_of(names: set[str]) -> str | None:
    """ "dates" for names of which most are, "numbers" or "a camera's folders" for names that all are, or None."""
    if _mostly_dates(names):
        return "dates"
    if all(map(_CAMERA_FOLDER.fullmatch, names)):
        return "a camera's folders"
    return "numbers" if all(map(_NUMBER.fullmatch, names)) else None


def _mostly_dates(names: set[str]) -> bool:
    """Whether all are dates, or more than half: a folder "misc" beside years does not make classes of them.

    Where not all are, "01" may be a number like its neighbours, and is no date.
    """
    if all(map(_is_date, names)):
        return True
    dates = sum(_is_date(name) and not _MONTH.fullmatch(name.strip()) for name in names)
    return dates > 1 and 2 * dates > len(names) and not all(map(_NUMBER.fullmatch, names))


def _is_date(name: str) -> bool:
    plain = re.sub(r"[\s._-]+", "-", name.strip().lower())
    words = plain.split("-")
    if any(word in _MONTHS for word in words) and all(word in _MONTHS or word.isdigit() for word in words):
        return True
    if _YEAR.fullmatch(plain) or _MONTH.fullmatch(plain):
        return True
    return any(_parses(plain, form) for form in (*_DATES, *_TIMES))


def _parses(text: str, form: str) -> bool:
    try:
        return 1900 <= datetime.strptime(text, form).year < 2100
    except ValueError:
        return False
