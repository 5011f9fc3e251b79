"""JSON that every program reads: NaN and infinity, which JSON does not have, become null; and reading what is none."""

import json
import math
from collections.abc import Mapping
from typing import Any


def jsonable(value: Any) -> Any:
    """The same with None for numbers that are not finite, however deep they lie; tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(entry) for entry in value]
    return value


def finite(value: Any) -> float | None:
    """One number (of Python, numpy or torch) as JSON has it; None for NaN and infinity."""
    return jsonable(float(value))


def dumps(value: Any, **options: Any) -> str:
    """`json.dumps` of what `jsonable` makes of the value, with the same options."""
    return json.dumps(jsonable(value), allow_nan=False, **options)


def loads(text: str | bytes) -> Any:
    """`json.loads`, but whatever is wrong with the text is a `ValueError` that says what: bytes, depth, numbers."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise ValueError("it has a number with thousands of digits") from error
