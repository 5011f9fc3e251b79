"""JSON that every program reads: NaN and infinity, which JSON does not have, become null."""

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
