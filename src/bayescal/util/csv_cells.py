"""Cells of a table that a spreadsheet opens: text in it never becomes a formula, and comes back as it was."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def plain_cell(value: Any, raw: bool = False) -> Any:
    """Text that a spreadsheet would run gets an apostrophe before it, which says "text"; `raw`: as it is."""
    return f"'{value}" if not raw and isinstance(value, str) and _is_taken_for_one(value) else value


def as_it_was(cell: str) -> str:
    """The text of a cell without the apostrophe that `plain_cell` put before it."""
    return cell[1:] if cell.startswith("'") and _is_taken_for_one(cell[1:]) else cell


def _is_taken_for_one(text: str) -> bool:
    """A formula, or text that would lose its own apostrophe when it is read."""
    return text.lstrip("'").startswith(FORMULA)
