"""Cells of a table that a spreadsheet opens: text in it never becomes a formula, and comes back as it was."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def plain_cell(value: Any, raw: bool = False) -> Any:
    """Text that a spreadsheet would run gets an apostrophe before it, which says "text"; `raw`: as it is."""
    return f"'{value}" if not raw and isinstance(value, str) and value.startswith(FORMULA) else value


def as_it_was(cell: str) -> str:
    """The text of a cell without the apostrophe that `plain_cell` put before it."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell
