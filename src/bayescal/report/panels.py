"""What all Plotly figures share: axes for every panel, texts without surprises, one legend entry per method."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, isfinite
from typing import Any

from bayescal.plots import FAINT, INK
from bayescal.report.looks import GRID, PAPER

Trace = dict[str, Any]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def text(words: str) -> str:
    """A user's words inside a Plotly text, where tags are HTML, $…$ is a formula and %{…} a number to fill in."""
    return escape(str(words), quote=False).replace("$", "&#36;").replace("{", "&#123;")


def lined(words: str, letters: int) -> str:
    """The same in lines."""
    return "<br>".join(map(text, textwrap.wrap(str(words), letters)))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """JSON has no NaN; a gap in a curve is None."""
    return [None if value is None or not isfinite(value) else value for value in values]


def share_axis(percent: bool) -> dict[str, Any]:
    return {"tickformat": ".2~%"} if percent else {}


def log_axis(values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis: powers of ten where there are several, else numbers between them too."""
    known = [value for value in values if value is not None and value > 0]
    look = {"type": "log", "exponentformat": "power"}
    if known and max(known) / min(known) >= 100:
        return look | {"dtick": 1, "tickfont": {"size": 10}}  # Plotly writes powers a quarter larger
    return look


def axis_title(words: str) -> dict[str, Any]:
    return {"text": words, "standoff": 8, "font": {"size": 12}}


def axis_name(name: str, panel: int) -> str:
    """Plotly's name of an axis: the first has no number."""
    return name if panel == 1 else f"{name}{panel}"


def at(panel: int) -> dict[str, str]:
    return {"xaxis": axis_name("x", panel), "yaxis": axis_name("y", panel)}


def new_trace(name: str, panel: int, group: str = "") -> Trace:
    return {"type": "scatter", "name": text(name), "legendgroup": text(group or name), **at(panel)}


def named_once(traces: list[Trace]) -> list[Trace]:
    """A series that is in several panels has one entry in the legend."""
    seen: set[str] = set()
    for trace in traces:
        if trace.get("showlegend", True):
            trace["showlegend"] = trace["legendgroup"] not in seen
            seen.add(trace["legendgroup"])
    return traces


def note(layout: dict[str, Any], i: int, words: str, **look_and_place: Any) -> None:
    """Words at a place of a panel, in fractions of its size."""
    where = {"xref": f"{axis_name('x', i)} domain", "yref": f"{axis_name('y', i)} domain", "showarrow": False}
    layout["annotations"].append({"text": words, **where, **look_and_place})


def panel_layout(
    titles: Sequence[str],
    square: bool = False,
    bars: bool = False,
    bare: bool = False,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Axes for every panel, three side by side at most.

    `bars`: each panel has a colour bar at its right; `bare`: axes have no numbers. `meta` is for page.js, which puts
    panels and titles in their places for the width that there is.
    """
    columns = min(3, len(titles)) if len(titles) != 4 else 2
    rows = ceil(len(titles) / max(columns, 1))
    layout: dict[str, Any] = {
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 16, "t": 40, "b": 56},
        "height": 56 + rows * 340,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": FAINT,
            "font": {"family": FONT, "size": 13, "color": INK},
            "align": "left",
            "namelength": -1,
        },
        "legend": {"orientation": "h", "y": -0.15, "yanchor": "top"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": FAINT, "activecolor": INK},
        "uirevision": "keep",
        "shapes": [],
        "annotations": [],
        "meta": {"titles": list(titles), "square": square, "bars": bars, "bare": bare},
    }
    for i, title in enumerate(titles, start=1):
        row, column = divmod(i - 1, columns)
        layout[axis_name("xaxis", i)] = _axis_look(_part(column, columns), axis_name("y", i), x)
        layout[axis_name("yaxis", i)] = _axis_look(_part(rows - 1 - row, rows), axis_name("x", i), y)
        words = lined(title, 44)
        place = {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": 5, "align": "left"}
        note(layout, i, f"<b>{words}</b>" if words else "", **place, name=f"title {i}")
    return layout


def _part(i: int, n: int) -> list[float]:
    """The i-th of n equal parts of a side, with room between them."""
    gap = 0.22 / n
    return [round(i / n + (gap if i else 0), 4), round((i + 1) / n, 4)]


def _axis_look(domain: list[float], anchor: str, more: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "domain": domain,
        "anchor": anchor,
        "gridcolor": GRID,
        "linecolor": FAINT,
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": FAINT,
        "tickfont": {"size": 12},
        **(more or {}),
    }
