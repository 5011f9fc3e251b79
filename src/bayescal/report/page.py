"""The report as one HTML file that needs nothing else: no network, no other file, whatever the names in it are.

page.html is the frame, page.css the look, page.js draws the figures with Plotly, whose script is inside the page.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from bayescal.experiments.findings import Figure, Section, Table
from bayescal.report.figures import is_empty, plotly_figure
from bayescal.report.latex import table_latex
from bayescal.report.looks import Looks, dark_colours, looks_for
from bayescal.report.markdown import table_markdown
from bayescal.report.page_tables import prose, table_html
from bayescal.report.reading import ORDER, in_order
from bayescal.report.words import Addresses, paragraphs

GENERATOR = "bayescal report"  # in the head of every page, by which an older one is known and may be replaced


def to_html(sections: Sequence[Section], title: str = "Bayes-CAL: what was found") -> str:
    """The whole page. Figures share their looks: a method has one colour everywhere."""
    from plotly.offline import get_plotlyjs

    sections = in_order(list(sections))
    looks = looks_for(figure for section in sections for figure in section.figures)
    addresses = Addresses()
    places = [addresses.new("section", section.experiment) for section in sections]
    bodies = [_section(s, place, looks, addresses) for s, place in zip(sections, places, strict=True)]
    contents = (
        f'<li><a href="#{place}">{escape(section.title)}</a></li>'
        for section, place in zip(sections, places, strict=True)
    )
    return _fill(
        _asset("page.html"),
        {
            "title": escape(title),
            "generator": GENERATOR,
            "css": _asset("page.css"),
            "about": _about(sections),
            "contents": "".join(contents),
            "sections": "".join(bodies),
            "missing": _missing(sections),
            "dark": script_json(dark_colours()),
            "plotly": re.sub(r"</(?=script)", r"<\\/", get_plotlyjs(), flags=re.IGNORECASE),
            "js": _asset("page.js"),
        },
    )


def script_json(content: Any) -> str:
    """JSON that stays data inside a <script>, whatever is in it: no tag can begin, no line separator can break it."""
    text = json.dumps(_finite(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(content: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(content, float):
        return content if isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def _fill(frame: str, parts: Mapping[str, str]) -> str:
    """The frame with its {{names}} filled in, once: what is filled in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def _asset(name: str) -> str:
    return (files("bayescal.report") / name).read_text(encoding="utf-8")


def _about(sections: Sequence[Section]) -> str:
    n = len(sections)
    newest = max((section.made for section in sections), default="")
    versions = sorted({section.versions["bayescal"] for section in sections if "bayescal" in section.versions})
    said = [f"{n} experiment{'' if n == 1 else 's'}", f"newest of {_date(newest)}" if newest else ""]
    said.append(f"bayescal {', '.join(versions)}" if versions else "")
    return escape(" · ".join(part for part in said if part))


def _date(made: str) -> str:
    """Date and time to the minute; what is not ISO stays as it is."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", made)
    return f"{found[1]} {found[2]}" if found else made


def _missing(sections: Sequence[Section]) -> str:
    here = {section.experiment for section in sections}
    absent = [name for name in ORDER if name not in here]
    if not absent:
        return ""
    commands = ", ".join(f"<code>bayescal bench {name}</code>" for name in absent)
    return f'<p class="absent">Not in this report, because they were not run: {commands}.</p>'


def _section(section: Section, place: str, looks: Looks, addresses: Addresses) -> str:
    name = section.experiment
    tables = [_table(table, addresses.new("table", name, table.key)) for table in section.tables]
    figures = [_figure(figure, addresses.new("figure", name, figure.key), looks) for figure in section.figures]
    lead = "".join(f"<p>{prose(part)}</p>" for part in paragraphs(section.lead))
    return (
        f'<section id="{place}"><h2><a href="#{place}">{escape(section.title)}</a></h2><div class="lead">{lead}</div>'
        f"{''.join(tables)}{''.join(figures)}{_remarks(section)}{_rerun(section)}</section>"
    )


def _table(table: Table, address: str) -> str:
    """With the same table in formats to paste elsewhere."""
    formats = {"Markdown": table_markdown(table), "LaTeX": table_latex(table)}
    buttons = "".join(f'<button type="button" data-copy="{name}">{name}</button>' for name in formats)
    source = f'<script type="application/json">{script_json(formats)}</script>'
    return table_html(table, address, f'<div class="copies">Copy as {buttons}{source}</div>')


def _figure(figure: Figure, address: str, looks: Looks) -> str:
    note = "".join(f'<p class="note">{prose(part)}</p>' for part in paragraphs(figure.note))
    if is_empty(figure):
        title = f"<figcaption>{escape(figure.title)}</figcaption>"
        return f'<figure class="empty" id="{address}">{title}<p class="note">Nothing to draw.</p>{note}</figure>'
    return (
        f'<figure class="plot {escape(figure.kind)}" id="{address}">'
        f"<figcaption>{escape(figure.title)}</figcaption>"
        '<div class="copies">Save as <button type="button" data-save="png">PNG</button>'
        '<button type="button" data-save="svg">SVG</button></div>'
        f'<div class="legend"></div><div class="drawing" role="img" aria-label="{escape(figure.title)}"></div>'
        f'<script type="application/json" class="data">{script_json(plotly_figure(figure, looks))}</script>'
        f"{note}</figure>"
    )


def _remarks(section: Section) -> str:
    html = ""
    if section.notes:
        notes = "".join(f"<li>{prose(note)}</li>" for note in section.notes)
        html += f'<aside class="skipped"><h3>Skipped or missing</h3><ul>{notes}</ul></aside>'
    if section.limits:
        limits = "".join(f"<p>{prose(part)}</p>" for part in paragraphs(section.limits))
        html += f'<aside class="limits"><h3>What this does not show</h3>{limits}</aside>'
    return html


def _rerun(section: Section) -> str:
    versions = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(version)}</dd></div>" for name, version in section.versions.items()
    )
    return (
        '<div class="rerun"><h3>Rerun it</h3>'
        f'<div class="command"><pre tabindex="0"><code>{escape(section.command)}</code></pre>'
        '<button type="button" data-copy="command">Copy</button></div>'
        f"<dl><div><dt>made</dt><dd>{escape(_date(section.made))}</dd></div>{versions}</dl></div>"
    )
