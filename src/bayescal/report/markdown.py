"""Tables and sections as Markdown, as GitHub reads it: best in bold, second underlined (`<ins>`, the tag it allows)."""

import re

from bayescal.benchmark.results import Section, Table
from bayescal.report.tables import BEST, SECOND, Cell, Heading, View, view
from bayescal.report.text import paragraphs, spans

_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")


def table_markdown(table: Table) -> str:
    """Title, table, footnotes and note. Headings over columns are said in each of them: Markdown has one level."""
    seen = view(table)
    lines = [f"**{escape(table.title)}**" + (f" (in {seen.unit})" if seen.unit else ""), "", _row(["", *_heads(seen)])]
    lines.append(
        "|" + "|".join(["---", *("---" if seen.is_text(j) else "---:" for j in range(len(seen.columns)))]) + "|"
    )
    group = ""
    for row, cells in seen.rows:
        if row.group != group and row.group:
            lines.append(_row([f"*{escape(row.group)}*", *("" for _ in cells)]))
        group = row.group
        lines.append(_row([escape(row.label), *map(_cell, cells)]))
    if seen.footnotes:
        lines += ["", *(f"<sup>{mark}</sup> {prose(why)}  " for mark, why in seen.footnotes)]
    lines += [line for part in paragraphs(table.note) for line in ("", prose(part))]
    return "\n".join(lines) + "\n"


def section_markdown(section: Section, images: dict[str, str] | None = None) -> str:
    """A section with its tables; figures are shown where `images` says where their files are (by figure key)."""
    parts = [f"## {escape(section.title)}", *map(prose, paragraphs(section.lead))]
    parts += [table_markdown(table).strip() for table in section.tables]
    for figure in section.figures:
        if path := (images or {}).get(figure.key):
            parts.append(f"![{escape(figure.title)}]({path})")
            parts += map(prose, paragraphs(figure.note))
    if section.notes:
        parts += ["**Skipped or missing**", "\n".join(f"- {prose(note)}" for note in section.notes)]
    if section.limits:
        parts += ["**What this does not show**", *map(prose, paragraphs(section.limits))]
    versions = ", ".join(f"{name} {version}" for name, version in section.versions.items())
    parts += ["**Rerun it**", fenced(section.command), f"Made {escape(section.made)} with {escape(versions)}."]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Words as they are, on one line: nothing in them is markup."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def prose(text: str) -> str:
    """A sentence that may hold `code`."""
    return "".join(f"`{piece}`" if code else escape_keeping_space(piece) for code, piece in spans(text))


def escape_keeping_space(piece: str) -> str:
    """Between two pieces of code a blank counts."""
    left, right = piece[:1].isspace(), piece[-1:].isspace()
    return " " * left + escape(piece) + " " * (right and bool(piece.strip()))


def fenced(command: str) -> str:
    """Code in a fence longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}console\n$ {command}\n{fence}"


def _heads(seen: View) -> list[str]:
    return [_head(heading, column.group) for heading, column in zip(seen.headings, seen.columns, strict=True)]


def _head(heading: Heading, group: str) -> str:
    return " · ".join(escape(part) for part in (group, str(heading)) if part)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    text = {BEST: f"**{text}**", SECOND: f"<ins>{text}</ins>"}.get(cell.rank, text)
    mark = f"<sup>{cell.mark}</sup>" if cell.mark else ""
    return text + (f" ± {cell.error}" if cell.error else "") + mark


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
