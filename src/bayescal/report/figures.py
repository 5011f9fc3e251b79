"""Figures as Plotly reads them: plain dictionaries, one subplot per panel.

Names come from users and Plotly reads its texts as a kind of HTML, so every name is escaped. The page lays panels out
anew for the width it has (page.js); the layout made here is for a wide screen.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from html import escape as _escape
from math import ceil, isfinite, log10, sqrt
from typing import Any

from bayescal.errors import DataError
from bayescal.experiments.findings import Figure
from bayescal.plots import FAINT, INK
from bayescal.report.looks import GRID, PAPER, Look, Looks, look, looks_for

Trace = dict[str, Any]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/webp;", "data:image/gif;")
FEW = 40  # points of a curve up to which each has a marker
STEEP = 20  # largest over smallest loss from which a landscape is coloured by its logarithm


def plotly_figure(figure: Figure, looks: Looks | None = None) -> dict[str, Any]:
    """{"data": traces, "layout": layout}. `looks`: of all figures that are shown together (`looks_for`)."""
    draw = _KINDS.get(figure.kind)
    if draw is None:
        raise DataError(f"figure {figure.key!r}: unknown kind {figure.kind!r}; expected one of {', '.join(_KINDS)}")
    try:
        return draw(figure.data, looks_for([figure]) if looks is None else looks)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(
            f"figure {figure.key!r} of kind {figure.kind!r} cannot be drawn ({type(error).__name__}: {error}); "
            f"docs/experiments.md says what its data have to be"
        ) from error


def _lines(data: Mapping[str, Any], looks: Looks) -> dict[str, Any]:
    panels = data["panels"]
    percent = bool(data.get("percent"))
    y_axis = {"title": {"text": text(data["y"])}, **_share(percent), **({"type": "log"} if data.get("log_y") else {})}
    layout = _layout([panel["title"] for panel in panels], x={"title": {"text": text(data["x"])}}, y=y_axis)
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        for series in panel["series"]:
            traces += _curve(series, looks[series["name"]], percent, i)
        if panel.get("chance") is not None:
            _level(layout, i, panel["chance"], "chance")
    return {"data": _named_once(traces), "layout": layout}


def _curve(series: Mapping[str, Any], style: Look, percent: bool, panel: int) -> list[Trace]:
    """A line and, where errors are known, a band of one standard error around it."""
    x, y = series["x"], _numbers(series["y"])
    errors = _numbers(series.get("error") or [None] * len(y))
    shown = ".1%" if percent else ".4~g"
    spread = [f" ± {_plain(error, percent)}" if error else "" for error in errors]
    line = {
        **_trace(series["name"], panel),
        "x": x,
        "y": y,
        "mode": "lines+markers" if len(x) <= FEW else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.marker, "size": 6},
        "text": spread,
        "hovertemplate": f"%{{y:{shown}}}%{{text}}<br>%{{xaxis.title.text}} %{{x}}",
    }
    known = [k for k, (value, error) in enumerate(zip(y, errors, strict=True)) if value is not None and error]
    if not known:
        return [line]
    outline = [(x[k], y[k] + errors[k]) for k in known] + [(x[k], y[k] - errors[k]) for k in reversed(known)]
    band = {
        **_trace(series["name"], panel),
        "x": [place for place, _ in outline],
        "y": [height for _, height in outline],
        "mode": "lines",
        "line": {"width": 0, "color": style.colour},
        "fill": "toself",
        "fillcolor": style.band,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def _landscape(data: Mapping[str, Any], looks: Looks) -> dict[str, Any]:
    panels = data["panels"]
    layout = _layout([panel["title"] for panel in panels], square=True, bars=True)
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        for axis, share, number in zip(("xaxis", "yaxis"), panel["explained"], (1, 2), strict=True):
            title = f"direction {number}" if share is None else f"direction {number} ({share:.0%} of the path)"
            layout[_axis(axis, i)] |= {"title": {"text": title, "standoff": 6}, "showgrid": False}
        traces.append(_contour(panel, i))
        traces += _path(panel, i)
    return {"data": _named_once(traces), "layout": layout}


def _contour(panel: Mapping[str, Any], i: int) -> Trace:
    losses = [_numbers(row) for row in panel["z"]]
    known = [loss for row in losses for loss in row if loss is not None]
    low, high = min(known), max(known)
    steep = low > 0 and high / low > STEEP
    height = log10 if steep else float
    ticks = [low + (high - low) * k / 4 for k in range(5)]
    if steep:
        ticks = [10 ** (log10(low) + (log10(high) - log10(low)) * k / 4) for k in range(5)]
    return {
        "type": "contour",
        **_at(i),
        "x": panel["x"],
        "y": panel["y"],
        "z": [[None if loss is None else round(height(loss), 5) for loss in row] for row in losses],
        "text": [["" if loss is None else f"{loss:.4g}" for loss in row] for row in losses],
        "hovertemplate": "loss %{text}<extra></extra>",
        "colorscale": "Cividis",
        "ncontours": 16,
        "line": {"width": 0.5, "color": "rgba(255,255,255,0.35)"},
        "colorbar": {
            "thickness": 10,
            "outlinewidth": 0,
            "xpad": 6,
            "ypad": 0,
            "title": {"text": "loss", "side": "top", "font": {"size": 11}},
            "tickvals": [height(tick) for tick in ticks],
            "ticktext": [f"{tick:.3g}" for tick in ticks],
            "tickfont": {"size": 11},
        },
        "showlegend": False,
    }


def _path(panel: Mapping[str, Any], i: int) -> list[Trace]:
    """The way of the training over the landscape: white on black, so that it is seen on every colour below."""
    x, y = zip(*panel["path"], strict=True) if panel["path"] else ((), ())
    around = {"width": 1, "color": "#000000"}
    ends = [("start", x[:1], y[:1], "circle"), ("end", x[-1:], y[-1:], "square")]
    if panel.get("best"):
        ends.append(("smallest loss", panel["best"][:1], panel["best"][1:], "star"))
    return [
        {
            **_trace("path", i),
            "x": list(x),
            "y": list(y),
            "mode": "lines",
            "line": {"width": 4, "color": "#000000"},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            **_trace("path", i),
            "x": list(x),
            "y": list(y),
            "mode": "lines+markers",
            "line": {"width": 2, "color": "#ffffff"},
            "marker": {"size": 4, "color": "#ffffff", "line": around},
            "text": [f"epoch {k}" for k in range(len(x))],
            "hovertemplate": "%{text}",
        },
        *(
            {
                **_trace(name, i),
                "x": list(a),
                "y": list(b),
                "mode": "markers",
                "marker": {
                    "size": 15 if symbol == "star" else 10,
                    "symbol": symbol,
                    "color": "#ffffff",
                    "line": around,
                },
                "hovertemplate": name + "<extra></extra>",
            }
            for name, a, b, symbol in ends
        ),
    ]


def _points(data: Mapping[str, Any], looks: Looks) -> dict[str, Any]:
    """The same points twice: coloured by class and by environment."""
    what = ("class", "environment")
    layout = _layout([f"by {kind}" for kind in what], square=True)
    for i, _ in enumerate(what, start=1):
        for axis in ("xaxis", "yaxis"):
            layout[_axis(axis, i)] |= {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
    names = {"class": data["classes"], "environment": data["environments"]}
    about = [
        text(f"{names['class'][c]}, {names['environment'][e]}")
        for c, e in zip(data["class"], data["environment"], strict=True)
    ]
    pictures = data.get("thumbnails") or []
    # Only pictures that are inside the page: anything else would be fetched.
    layout["meta"]["thumbnails"] = [uri if str(uri).startswith(IMAGES) else "" for uri in pictures]
    traces: list[Trace] = []
    for i, kind in enumerate(what, start=1):
        for number, name in enumerate(names[kind]):
            rows = [k for k, value in enumerate(data[kind]) if value == number]
            style = look(number)
            traces.append(
                {
                    **_trace(name, i, group=f"{kind}: {name}"),
                    "legendgrouptitle": {"text": kind},
                    "x": [data["x"][k] for k in rows],
                    "y": [data["y"][k] for k in rows],
                    "customdata": rows,
                    "text": [about[k] for k in rows],
                    "mode": "markers",
                    "marker": {"color": style.colour, "symbol": style.marker, "size": 7, "opacity": 0.8},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    return {"data": traces, "layout": layout}


def _reliability(data: Mapping[str, Any], looks: Looks) -> dict[str, Any]:
    panels = data["panels"]
    axis = {"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.2, "constrain": "domain"}
    layout = _layout(
        [panel["title"] for panel in panels],
        square=True,
        x={**axis, "title": {"text": "confidence"}},
        y={**axis, "title": {"text": "accuracy"}},
    )
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        _diagonal(layout, i)
        _calibration_errors(layout, i, panel["series"], looks)
        most = max((n or 0 for series in panel["series"] for n in series["count"]), default=1)
        traces += [_bins(series, looks[series["name"]], most, i) for series in panel["series"]]
    return {"data": _named_once(traces), "layout": layout}


def _bins(series: Mapping[str, Any], style: Look, most: int, panel: int) -> Trace:
    """Bins without images are left out; the size of a marker says how many images are in its bin."""
    columns = (series["confidence"], series["accuracy"], series["count"])
    full = [(c, a, n) for c, a, n in zip(*columns, strict=True) if n and c is not None and a is not None]
    return {
        **_trace(series["name"], panel),
        "x": [c for c, _, _ in full],
        "y": [a for _, a, _ in full],
        "mode": "lines+markers",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {
            "color": style.colour,
            "symbol": style.marker,
            "size": [round(5 + 11 * sqrt(n / most), 1) for _, _, n in full],
            "opacity": 0.85,
        },
        "text": [f"{n:,} images" for _, _, n in full],
        "hovertemplate": "confidence %{x:.1%}<br>accuracy %{y:.1%}<br>%{text}",
    }


def _diagonal(layout: dict[str, Any], i: int) -> None:
    line = {"color": FAINT, "width": 1, "dash": "dot"}
    place = {"xref": _axis("x", i), "yref": _axis("y", i), "x0": 0, "y0": 0, "x1": 1, "y1": 1}
    layout["shapes"].append({"type": "line", **place, "line": line, "layer": "below"})


def _calibration_errors(layout: dict[str, Any], i: int, series: Sequence[Mapping[str, Any]], looks: Looks) -> None:
    """Each method's expected calibration error, in its colour, in the corner that a sensible curve leaves free."""
    known = [(one["name"], one["ece"]) for one in series if one.get("ece") is not None]
    for k, (name, ece) in enumerate(reversed(known)):
        words = f"{text(name)} {100 * ece:.1f} %"
        colour = {"size": 11, "color": looks[name].colour}
        _note(layout, i, words, x=0.98, y=0.03, xanchor="right", yanchor="bottom", yshift=15 * k, font=colour)
    if known:
        title = {"size": 11, "color": FAINT}
        _note(layout, i, "ECE", x=0.98, y=0.03, xanchor="right", yanchor="bottom", yshift=15 * len(known), font=title)


def _scatter(data: Mapping[str, Any], looks: Looks) -> dict[str, Any]:
    panels = data["panels"]
    percent = bool(data.get("percent"))
    layout = _layout([""] * len(panels), y={"title": {"text": text(data["y"])}, **_share(percent)})
    shown = ".1%" if percent else ".4~g"
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        axis = layout[_axis("xaxis", i)]
        axis["title"] = {"text": f"<b>{text(panel['title'])}</b>", "standoff": 8}
        if not all(is_number(point["x"]) for point in panel["points"]):
            axis["type"] = "category"
        elif panel.get("log_x"):
            axis |= {"type": "log", "exponentformat": "power", "dtick": 1}
        for name in dict.fromkeys(point["name"] for point in panel["points"]):
            points = [point for point in panel["points"] if point["name"] == name]
            style = looks[name]
            traces.append(
                {
                    **_trace(name, i),
                    "x": [p["x"] if is_number(p["x"]) else text(str(p["x"])) for p in points],
                    "y": _numbers(p["y"] for p in points),
                    "text": [text(str(p.get("text") or "")) for p in points],
                    "mode": "markers",
                    "marker": {"color": style.colour, "symbol": style.marker, "size": 8, "opacity": 0.75},
                    "hovertemplate": f"%{{y:{shown}}} at %{{x:.4~g}}<br>%{{text}}"
                    if axis.get("type") != "category"
                    else f"%{{y:{shown}}} at %{{x}}<br>%{{text}}",
                }
            )
    return {"data": _named_once(traces), "layout": layout}


_KINDS: dict[str, Callable[[Mapping[str, Any], Looks], dict[str, Any]]] = {
    "lines": _lines,
    "landscape": _landscape,
    "points": _points,
    "reliability": _reliability,
    "scatter": _scatter,
}


def text(words: str) -> str:
    """A user's words inside a Plotly text, where tags are HTML and a pair of dollar signs would be a formula."""
    return _escape(str(words), quote=False).replace("$", "&#36;")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(values: Any) -> list[float | None]:
    """JSON has no NaN; a gap in a curve is None."""
    return [None if value is None or not isfinite(value) else value for value in values]


def _plain(number: float, percent: bool) -> str:
    return f"{100 * number:.1f}%" if percent else f"{number:.2g}"


def _share(percent: bool) -> dict[str, Any]:
    return {"tickformat": ".2~%"} if percent else {}


def _axis(name: str, panel: int) -> str:
    """Plotly's name of an axis: the first has no number."""
    return name if panel == 1 else f"{name}{panel}"


def _at(panel: int) -> dict[str, str]:
    return {"xaxis": _axis("x", panel), "yaxis": _axis("y", panel)}


def _trace(name: str, panel: int, group: str = "") -> Trace:
    return {"type": "scatter", "name": text(name), "legendgroup": text(group or name), **_at(panel)}


def _named_once(traces: list[Trace]) -> list[Trace]:
    """A series that is in several panels has one entry in the legend."""
    seen: set[str] = set()
    for trace in traces:
        if trace.get("showlegend", True):
            trace["showlegend"] = trace["legendgroup"] not in seen
            seen.add(trace["legendgroup"])
    return traces


def _level(layout: dict[str, Any], i: int, height: float, words: str) -> None:
    """A dotted line over the whole width of a panel, with its name on it."""
    at = {"xref": f"{_axis('x', i)} domain", "yref": _axis("y", i)}
    line = {"color": FAINT, "width": 1.2, "dash": "dot"}
    layout["shapes"].append({"type": "line", **at, "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line})
    words_at = {"x": 1, "y": height, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    layout["annotations"].append({"text": words, **at, **words_at, "font": {"size": 11, "color": FAINT}})


def _note(layout: dict[str, Any], i: int, words: str, **look_and_place: Any) -> None:
    """Words at a place of a panel, in fractions of its size."""
    at = {"xref": f"{_axis('x', i)} domain", "yref": f"{_axis('y', i)} domain", "showarrow": False}
    layout["annotations"].append({"text": words, **at, **look_and_place})


def _layout(
    titles: Sequence[str],
    square: bool = False,
    bars: bool = False,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Axes for every panel, three side by side at most. `bars`: each panel has a colour bar at its right."""
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
            "font": {"color": INK},
            "align": "left",
            "namelength": -1,
        },
        "legend": {"orientation": "h", "y": -0.15, "yanchor": "top"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": FAINT, "activecolor": INK},
        "uirevision": "keep",
        "shapes": [],
        "annotations": [],
        "meta": {"panels": len(titles), "square": square, "bars": bars},
    }
    for i, title in enumerate(titles, start=1):
        row, column = divmod(i - 1, columns)
        layout[_axis("xaxis", i)] = _axis_look(_part(column, columns), _axis("y", i), x)
        layout[_axis("yaxis", i)] = _axis_look(_part(rows - 1 - row, rows), _axis("x", i), y)
        words = "<br>".join(map(text, textwrap.wrap(title, 44)))
        if not words:
            continue
        _note(layout, i, f"<b>{words}</b>", x=0, y=1, xanchor="left", yanchor="bottom", yshift=5, align="left")
    return layout


def _part(i: int, n: int) -> list[float]:
    """The i-th of n equal parts of a side, with room between them."""
    gap = 0.22 / n
    return [round(i / n + (gap if i else 0), 4), round((i + 1) / n, 4)]


def _axis_look(domain: list[float], anchor: str, more: Mapping[str, Any] | None) -> dict[str, Any]:
    more = dict(more or {})
    if "title" in more:
        more["title"] = {"standoff": 8, "font": {"size": 12}, **more["title"]}
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
        **more,
    }
