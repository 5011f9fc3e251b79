"""What all Plotly figures share: axes for every panel, texts without surprises, one legend entry per method."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil
from typing import Any

from bayescal.report.plots import FAINT, INK
from bayescal.report.styles import GRID, PAPER
from bayescal.util.jsonable import jsonable

Trace = dict[str, Any]
GAP = 0.22  # between two panels, as a share of the room of one
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def text(name: str) -> str:
    """A user's text inside one of Plotly's, where tags are HTML, $…$ is a formula and %{…} a number to fill in."""
    return escape(str(name), quote=False).replace("$", "&#36;").replace("{", "&#123;")


def lined(name: str, letters: int) -> str:
    """The same in lines."""
    return "<br>".join(map(text, textwrap.wrap(str(name), letters)))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """JSON has no NaN; a gap in a curve is None."""
    return [None if value is None else jsonable(value) for value in values]


def share_axis(percent: bool) -> dict[str, Any]:
    return {"tickformat": ".2~%"} if percent else {}


def log_axis(values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis: powers of ten where there are several, else numbers between them too."""
    known = [value for value in values if value is not None and value > 0]
    axis = {"type": "log", "exponentformat": "power"}
    if known and max(known) / min(known) >= 100:
        return axis | {"dtick": 1, "tickfont": {"size": 10}}  # Plotly writes powers a quarter larger
    return axis


def axis_title(label: str) -> dict[str, Any]:
    return {"text": label, "standoff": 8, "font": {"size": 12}}


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


def note(layout: dict[str, Any], i: int, label: str, **options: Any) -> None:
    """Text on a panel; its position is in fractions of the panel's size."""
    where = {"xref": f"{axis_name('x', i)} domain", "yref": f"{axis_name('y', i)} domain", "showarrow": False}
    layout["annotations"].append({"text": label, **where, **options})


def panel_layout(
    titles: Sequence[str],
    square: bool = False,
    bars: bool = False,
    bare: bool = False,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Axes for every panel, three side by side at most.

    `bars`: each panel has a colour bar at its right; `bare`: axes have no numbers. `meta` is for page.js, which
    arranges panels and titles for the width that there is. Titles are annotations of our own, because those of
    `make_subplots` stand at fixed fractions of the figure and would stay behind when page.js moves a panel.
    """
    layout = _grid(len(titles), x or {}, y or {}) | {
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 16, "t": 40, "b": 56},
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
        label = lined(title, 44)
        corner = {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": 5, "align": "left"}
        note(layout, i, f"<b>{label}</b>" if label else "", **corner, name=f"title {i}")
    return layout


def _grid(panels: int, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    """A layout with an x and a y axis for each panel, row by row, and the height that the rows need."""
    from plotly.subplots import make_subplots

    columns = max(1, min(3, panels) if panels != 4 else 2)
    rows = max(1, ceil(panels / columns))
    taken = [[{} if row * columns + column < panels else None for column in range(columns)] for row in range(rows)]
    grid = make_subplots(rows, columns, specs=taken, horizontal_spacing=GAP / columns, vertical_spacing=GAP / rows)
    axis = {
        "gridcolor": GRID,
        "linecolor": FAINT,
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": FAINT,
        "tickfont": {"size": 12},
    }
    grid.update_xaxes({**axis, **x})
    grid.update_yaxes({**axis, **y})
    grid.update_layout(height=56 + rows * 340)
    layout = grid.layout.to_plotly_json()
    layout.pop("template", None)  # 7 kB of plotly.py's own colours in every figure of the page
    return layout
