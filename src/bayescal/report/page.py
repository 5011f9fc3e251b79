"""The report as one HTML file: no address in it is ever asked for, and whatever names hold stays text.

The page is made by Jinja2 with autoescaping (`templates/`); this module decides what goes into it. Three things are put
in unescaped: this package's own style sheet and script, Plotly's script, and JSON that `script_json` has made safe.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from bayescal.benchmark.experiments import EXPERIMENTS
from bayescal.benchmark.results import Figure, Section, Table
from bayescal.report.latex import table_latex
from bayescal.report.load import in_order
from bayescal.report.markdown import table_markdown
from bayescal.report.plotly_figures import is_empty, plotly_figure
from bayescal.report.styles import Styles, dark_colours, styles_for
from bayescal.report.tables import BEST, SECOND, View, column_groups, view
from bayescal.report.text import Addresses, paragraphs, spans
from bayescal.util.jsonable import dumps

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

GENERATOR = "bayescal report"  # in the head of every page, by which an older one is known and may be replaced


@dataclass(frozen=True)
class TablePart:
    """A table as the templates read it; `classes` of each column, `formats` to paste elsewhere."""

    table: Table
    view: View
    anchor: str
    classes: list[list[str]]
    formats: dict[str, str]


@dataclass(frozen=True)
class FigurePart:
    """A figure as the templates read it; `drawing` is what Plotly draws, None where there is nothing."""

    figure: Figure
    anchor: str
    drawing: dict[str, Any] | None


@dataclass(frozen=True)
class SectionPart:
    section: Section
    anchor: str
    tables: list[TablePart]
    figures: list[FigurePart]


def to_html(sections: Sequence[Section], title: str = "Bayes-CAL: what was found") -> str:
    """The whole page. Figures share their styles: a method has one colour everywhere."""
    sections = in_order(list(sections))
    styles = styles_for(figure for section in sections for figure in section.figures)
    addresses = Addresses()
    anchors = [addresses.new("section", section.experiment) for section in sections]
    run = {section.experiment for section in sections}
    page = environment().get_template("page.html")
    return page.render(
        title=title,
        generator=GENERATOR,
        about=_about(sections),
        sections=[_section(s, anchor, styles, addresses) for s, anchor in zip(sections, anchors, strict=True)],
        spread=any(table.has_errors for section in sections for table in section.tables),
        absent=[name for name in EXPERIMENTS if name not in run],
        dark=dark_colours(),
        css=own_file("colours.css") + own_file("page.css"),
        js=own_file("page.js"),
        plotly=_plotly_script(),
    )


def table_html(table: Table, anchor: str) -> str:
    """One table as it stands on the page; `anchor` is its id."""
    source = '{% from "table.html" import table %}{{ table(part) }}'
    return environment().from_string(source).render(part=_table(table, anchor))


def script_json(content: Any) -> "Markup":
    """JSON that stays data inside a <script>, whatever is in it: no tag can begin, no line separator can break it."""
    from jinja2.utils import htmlsafe_json_dumps

    return htmlsafe_json_dumps(content, dumps=dumps, ensure_ascii=True, separators=(",", ":"))


@lru_cache
def environment() -> "Environment":
    """What fills in the templates of this package; everything is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("bayescal.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a name that a template misspells is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "column_groups": column_groups,
        "date": _date,
        "paragraphs": paragraphs,
        "script_json": script_json,
        "spans": spans,
    }
    made.globals |= {"BEST": BEST, "SECOND": SECOND}
    return made


def own_file(name: str) -> "Markup":
    """A file of this package, whose content is put into the page as it is."""
    from markupsafe import Markup

    return Markup((files("bayescal.report") / "templates" / name).read_text(encoding="utf-8"))


def _plotly_script() -> "Markup":
    """Plotly's script; an end tag in one of its strings would end the element."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    return Markup(re.sub(r"</(?=script)", r"<\\/", get_plotlyjs(), flags=re.IGNORECASE))


def _about(sections: Sequence[Section]) -> str:
    n = len(sections)
    newest = max((section.made for section in sections), default="")
    versions = sorted({section.versions["bayescal"] for section in sections if "bayescal" in section.versions})
    said = [f"{n} experiment{'' if n == 1 else 's'}", f"newest of {_date(newest)}" if newest else ""]
    said.append(f"bayescal {', '.join(versions)}" if versions else "")
    return " · ".join(part for part in said if part)


def _date(made: str) -> str:
    """Date and time to the minute; what is not ISO stays as it is."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", made)
    return f"{found[1]} {found[2]}" if found else made


def _section(section: Section, anchor: str, styles: Styles, addresses: Addresses) -> SectionPart:
    name = section.experiment
    tables = [_table(table, addresses.new("table", name, table.key)) for table in section.tables]
    figures = [_figure(figure, addresses.new("figure", name, figure.key), styles) for figure in section.figures]
    return SectionPart(section, anchor, tables, figures)


def _table(table: Table, anchor: str) -> TablePart:
    seen = view(table)
    classes = [_column_classes(seen, j) for j in range(len(seen.columns))]
    return TablePart(table, seen, anchor, classes, {"Markdown": table_markdown(table), "LaTeX": table_latex(table)})


def _column_classes(seen: View, j: int) -> list[str]:
    """CSS classes of a column: text or numbers, published or not, the first of its group or not."""
    column = seen.columns[j]
    first = j > 0 and seen.grouped and seen.columns[j - 1].group != column.group
    named = {"text": seen.is_text(j), "published": column.published, "first": first}
    return [name for name, holds in named.items() if holds]


def _figure(figure: Figure, anchor: str, styles: Styles) -> FigurePart:
    return FigurePart(figure, anchor, None if is_empty(figure) else plotly_figure(figure, styles))
