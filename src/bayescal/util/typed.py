"""Plain data (JSON) as dataclasses, checked against their type hints: what is missing, unknown or of another kind.

read(Point, {"x": 1.5, "label": "a"})   →   Point(x=1.5, label="a")
read(Point, {"x": "1.5"})               →   ValueError: x: expected a number, found '1.5'
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LARGEST = 1 << 64  # whole numbers from here on are not ours: no tensor and no table holds them
_PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}


def read(hint: Any, value: Any, where: str = "") -> Any:
    """The value as `hint` says: dataclasses from objects, tuples from lists; a `ValueError` names what is not so.

    `where` is the place of the value in the whole, such as `tables[0].rows`.
    """
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint in _PLAIN or hint is None:
        return _plain(hint or NoneType, value, where)
    if origin in (Union, UnionType):
        return _one_of(get_args(hint), value, where)
    if origin is Literal:
        if not (isinstance(value, str) and value in get_args(hint)):
            raise _wrong(where, f"one of {', '.join(map(repr, get_args(hint)))}", value)
        return value
    if is_dataclass(hint):
        return _fields(hint, value, where)
    if origin in (list, tuple, Sequence):
        items = _items(get_args(hint)[0], value, where)
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping):
        return _entries(get_args(hint)[1], value, where)
    raise TypeError(f"{hint} cannot be read")


def _plain(kind: type, value: Any, where: str) -> Any:
    found = type(value)
    if not (found is kind or (kind is float and found is int)):
        raise _wrong(where, _PLAIN[kind], value)
    if found is int and abs(value) >= _LARGEST:
        raise _wrong(where, "a number of at most 19 digits", value)
    return value


def _one_of(hints: Sequence[Any], value: Any, where: str) -> Any:
    problems = []
    for hint in hints:
        try:
            return read(hint, value, where)
        except ValueError as error:
            problems.append(error)
    # Where an object or a list may stand and does, what is wrong inside it says more than "or text".
    fits = isinstance(value, dict) and any(map(is_dataclass, hints))
    raise next(p for p, hint in zip(problems, hints, strict=True) if not fits or is_dataclass(hint))


def _items(hint: Any, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)
    plain = _numbers(hint)
    if plain and set(map(type, value)) <= plain:  # curves have thousands of numbers
        return list(value)
    return [read(hint, item, f"{where}[{i}]") for i, item in enumerate(value)]


@lru_cache
def _numbers(hint: Any) -> frozenset[type]:
    """The types of values that need no second look, for hints of numbers: a float, or nothing."""
    return {float: frozenset({float}), float | None: frozenset({float, NoneType})}.get(hint, frozenset())


def _entries(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(where, "an object", value)
    return {key: read(hint, entry, _inside(where, key)) for key, entry in value.items()}


def _fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)
    known, needed = _fields_of(kind)
    if unknown := sorted(map(str, value.keys() - known.keys())):
        raise ValueError(f"{_inside(where, unknown[0])}: there is no such field")
    if missing := [name for name in needed if name not in value]:
        raise ValueError(f"{_inside(where, missing[0])}: is missing")
    return kind(**{name: read(known[name], entry, _inside(where, name)) for name, entry in value.items()})


@lru_cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The type of each field, and those that have no default."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return get_type_hints(kind), needed


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(where: str, expected: str, found: Any) -> ValueError:
    return ValueError(f"{where or 'the whole'}: expected {expected}, found {reprlib.repr(found)}")
