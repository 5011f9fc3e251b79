"""Tables as HTML: two levels of headings, means that stand in line, footnotes that also work on paper."""

from html import escape

from bayescal.experiments.findings import Table
from bayescal.report.tables import BEST, SECOND, Cell, View, column_groups, view
from bayescal.report.words import paragraphs, spans

BETTER = {"high": ("↑", "higher is better"), "low": ("↓", "lower is better")}


def table_html(table: Table, address: str, tools: str = "") -> str:
    """A figure with caption, scrolling box, footnotes and note; `address` is its id, `tools` HTML for its corner."""
    seen = view(table)
    unit = f' <span class="unit">in {escape(seen.unit)}</span>' if seen.unit else ""
    return (
        f'<figure class="table" id="{address}">'
        f'<figcaption id="{address}-title">{escape(table.title)}{unit}</figcaption>{tools}'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{address}-title">'
        f"<table>{_head(seen)}{_body(seen, address)}</table></div>"
        f"{_footnotes(seen, address)}{_paragraphs(table.note, 'note')}"
        f"</figure>"
    )


def prose(text: str) -> str:
    """A sentence that may hold `code`."""
    return "".join(f"<code>{escape(piece)}</code>" if code else escape(piece) for code, piece in spans(text))


def _paragraphs(text: str, kind: str) -> str:
    return "".join(f'<p class="{kind}">{prose(part)}</p>' for part in paragraphs(text))


def _head(seen: View) -> str:
    over = ""
    if seen.grouped:
        groups = column_groups(seen.columns)
        over = "<tr><td></td>" + "".join(
            f'<th colspan="{size}" scope="colgroup"{" class=group" if name else ""}>{escape(name)}</th>'
            for name, size in groups
        )
        over += "</tr>"
    return f"<thead>{over}<tr><td></td>{''.join(_heading(seen, j) for j in range(len(seen.columns)))}</tr></thead>"


def _heading(seen: View, j: int) -> str:
    column, heading = seen.columns[j], seen.headings[j]
    better = ""
    if column.better:
        arrow, words = BETTER[column.better]
        better = f' <span class="better" title="{words}" aria-label="{words}">{arrow}</span>'
    unit = f' <span class="unit">{escape(heading.unit)}</span>' if heading.unit else ""
    paper = f'<span class="paper">{escape(heading.paper)}</span>' if heading.paper else ""
    return f'<th scope="col"{_class(_kinds(seen, j))}>{escape(heading.title)}{unit}{better}{paper}</th>'


def _body(seen: View, address: str) -> str:
    lines, group = [], ""
    for row, cells in seen.rows:
        if row.group != group and row.group:
            words = f'<th scope="rowgroup"><span>{escape(row.group)}</span></th>'
            lines.append(f'<tr class="group">{words}<td colspan="{len(cells)}"></td></tr>')
        group = row.group
        texts = "".join(_cell(cell, seen, j, address) for j, cell in enumerate(cells))
        unranked = "" if row.ranked else ' class="unranked"'
        lines.append(f'<tr{unranked}><th scope="row">{escape(row.label)}</th>{texts}</tr>')
    return f"<tbody>{''.join(lines)}</tbody>"


def _cell(cell: Cell, seen: View, j: int, address: str) -> str:
    text = escape(cell.text)
    text = {BEST: f"<strong>{text}</strong>", SECOND: f"<u>{text}</u>"}.get(cell.place, text)
    if cell.mark:
        text += f'<sup><a href="#{address}-{cell.mark}">{cell.mark}</a></sup>'
    if width := seen.error_width(j):
        error = f"±&#8239;{escape(cell.error)}" if cell.error else ""
        text += f'<span class="error" style="width:{width + 1.6:g}ch">{error}</span>'
    title = f"mean of {cell.n}" if cell.n and cell.n > 1 else cell.why
    hint = f' title="{escape(title)}"' if title else ""
    return f"<td{_class(_kinds(seen, j))}{hint}>{text}</td>"


def _kinds(seen: View, j: int) -> list[str]:
    """Classes of a column: words or numbers, published or not, the first of its group or not."""
    column = seen.columns[j]
    first = j > 0 and seen.grouped and seen.columns[j - 1].group != column.group
    named = {"words": seen.is_words(j), "published": column.published, "first": first}
    return [name for name, holds in named.items() if holds]


def _class(names: list[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _footnotes(seen: View, address: str) -> str:
    if not seen.footnotes:
        return ""
    notes = (f'<li id="{address}-{mark}"><sup>{mark}</sup> {prose(why)}</li>' for mark, why in seen.footnotes)
    return f'<ul class="footnotes">{"".join(notes)}</ul>'
