"""Cells of a table that a spreadsheet opens: text in it never becomes a formula."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def plain_cell(value: Any, raw: bool = False) -> Any:
    """Text that a spreadsheet would run gets an apostrophe before it, which says "text"; `raw`: as it is."""
    return f"'{value}" if not raw and isinstance(value, str) and value.startswith(FORMULA) else value
