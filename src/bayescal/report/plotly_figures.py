"""Figures as Plotly reads them: plain dictionaries, one subplot per panel.

Names come from users and Plotly reads its texts as a kind of HTML, so every name is escaped. The page lays panels out
anew for the width it has (page.js); the layout made here is for a wide screen.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from math import log10, sqrt
from typing import Any

from bayescal.benchmark.results import Figure
from bayescal.errors import DataError
from bayescal.report.plotly_layout import (
    Trace,
    at,
    axis_name,
    axis_title,
    is_number,
    lined,
    log_axis,
    named_once,
    new_trace,
    note,
    numbers,
    panel_layout,
    share_axis,
    text,
)
from bayescal.report.plots import FAINT
from bayescal.report.styles import Style, Styles, nth_style, styles_for

NAME = "<b>%{fullData.name}</b><br>"  # over what is said about a point
IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/webp;", "data:image/gif;")
BASE_MARKER, NEW_MARKER = "circle", "x"
FEW = 16  # points of a curve up to which each has a marker
STEEP = 20  # largest over smallest loss from which a landscape is coloured by its logarithm


def is_empty(figure: Figure) -> bool:
    """Nothing came out that could be drawn: everything was skipped."""
    return figure.data.get("panels") == []


def plotly_figure(figure: Figure, styles: Styles | None = None) -> dict[str, Any]:
    """{"data": traces, "layout": layout}. `styles`: of all figures that are shown together (`styles_for`)."""
    draw = _KINDS.get(figure.kind)
    if draw is None:
        raise DataError(f"figure {figure.key!r}: unknown kind {figure.kind!r}; expected one of {', '.join(_KINDS)}")
    try:
        return draw(figure.data, styles_for([figure]) if styles is None else styles)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(
            f"figure {figure.key!r} of kind {figure.kind!r} cannot be drawn ({type(error).__name__}: {error}); "
            f"docs/experiments.md says what its data have to be"
        ) from error


def _lines(data: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    panels = data["panels"]
    percent = bool(data.get("percent"))
    y_axis = {"title": axis_title(text(data["y"])), **share_axis(percent)}
    if data.get("log_y"):
        y_axis |= log_axis(y for panel in panels for series in panel["series"] for y in numbers(series["y"]))
    layout = panel_layout([panel["title"] for panel in panels], x={"title": axis_title(text(data["x"]))}, y=y_axis)
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        for series in panel["series"]:
            traces += _curve(series, styles[series["name"]], percent, i)
        if panel.get("chance") is not None:
            reach = [x for series in panel["series"] for x in series["x"]] or [0, 1]
            traces.append(_level(layout, i, reach, panel["chance"], "chance"))
    return {"data": named_once(traces), "layout": layout}


def _curve(series: Mapping[str, Any], style: Style, percent: bool, panel: int) -> list[Trace]:
    """A line and, where errors are known, a band of one standard error around it."""
    x, y = series["x"], numbers(series["y"])
    errors = numbers(series.get("error") or [None] * len(y))
    shown = ".1%" if percent else ".4~g"
    spread = [f" ± {_plain(error, percent)}" if error else "" for error in errors]
    line = {
        **new_trace(series["name"], panel),
        "x": x,
        "y": y,
        "mode": "lines+markers" if has_markers(x) else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.marker, "size": 6},
        "text": spread,
        "hovertemplate": f"{NAME}%{{y:{shown}}}%{{text}}<br>%{{xaxis.title.text}} %{{x}}<extra></extra>",
    }
    known = [(at, value, error) for at, value, error in zip(x, y, errors, strict=True) if value is not None and error]
    if not known:
        return [line]
    outline = [(at, value + error) for at, value, error in known]
    outline += [(at, value - error) for at, value, error in reversed(known)]
    band = {
        **new_trace(series["name"], panel),
        "x": [x for x, _ in outline],
        "y": [y for _, y in outline],
        "mode": "lines",
        "line": {"width": 0, "color": style.colour},
        "fill": "toself",
        "fillcolor": style.band,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def _landscape(data: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    panels = data["panels"]
    layout = panel_layout([panel["title"] for panel in panels], square=True, bars=True)
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        for axis, share, number in zip(("xaxis", "yaxis"), panel["explained"], (1, 2), strict=True):
            title = f"direction {number}" if share is None else f"direction {number} ({share:.0%} of the path)"
            layout[axis_name(axis, i)] |= {"title": axis_title(title), "showgrid": False, "nticks": 6}
        traces.append(_contour(panel, i))
        traces += _path(panel, i)
    return {"data": named_once(traces), "layout": layout}


def _contour(panel: Mapping[str, Any], i: int) -> Trace:
    losses = [numbers(row) for row in panel["z"]]
    known = [loss for row in losses for loss in row if loss is not None]
    low, high = min(known), max(known)
    steep = low > 0 and high / low > STEEP
    height = log10 if steep else float
    ticks = [low + (high - low) * k / 4 for k in range(5)]
    if steep:
        ticks = [10 ** (log10(low) + (log10(high) - log10(low)) * k / 4) for k in range(5)]
    return {
        "type": "contour",
        **at(i),
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
    around = {"width": 1, "color": "black"}
    ends = [("start", x[:1], y[:1], "circle"), ("end", x[-1:], y[-1:], "square")]
    if panel.get("best"):
        ends.append(("smallest loss", panel["best"][:1], panel["best"][1:], "star"))
    return [
        {
            **new_trace("path", i),
            "x": list(x),
            "y": list(y),
            "mode": "lines",
            "line": {"width": 4, "color": "black"},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            **new_trace("path", i),
            "x": list(x),
            "y": list(y),
            "mode": "lines+markers",
            "line": {"width": 2, "color": "white"},
            "marker": {"size": 4, "color": "white", "line": around},
            "text": [f"epoch {k}" for k in range(len(x))],
            "hovertemplate": "%{text}<extra></extra>",
        },
        *(
            {
                **new_trace(name, i),
                "x": list(a),
                "y": list(b),
                "mode": "markers",
                "marker": {
                    "size": 15 if symbol == "star" else 10,
                    "symbol": symbol,
                    "color": "white",
                    "line": around,
                },
                "hovertemplate": name + "<extra></extra>",
            }
            for name, a, b, symbol in ends
        ),
    ]


def _points(data: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    """The same points twice: coloured by class and by environment."""
    what = ("class", "environment")
    layout = panel_layout([f"by {kind}" for kind in what], square=True, bare=True)
    for i, _ in enumerate(what, start=1):
        for axis in ("xaxis", "yaxis"):
            layout[axis_name(axis, i)] |= {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
    names = {"class": data["classes"], "environment": data["environments"]}
    about = [
        text(f"{names['class'][c]}, {names['environment'][e]}")
        for c, e in zip(data["class"], data["environment"], strict=True)
    ]
    thumbnails = data.get("thumbnails") or []
    # Only those that are inside the page: anything else would be fetched.
    layout["meta"]["thumbnails"] = [uri if str(uri).startswith(IMAGES) else "" for uri in thumbnails]
    new = set(data.get("new") or ())  # classes kept for new names: crosses, and all others discs
    traces: list[Trace] = []
    for i, kind in enumerate(what, start=1):
        for number, name in enumerate(names[kind]):
            rows = [k for k, value in enumerate(data[kind]) if value == number]
            style = nth_style(number)
            symbols = [NEW_MARKER if data["class"][k] in new else BASE_MARKER for k in rows] if new else style.marker
            if new and kind == "class":
                symbols, name = (NEW_MARKER, f"{name} (new)") if number in new else (BASE_MARKER, name)
            traces.append(
                {
                    **new_trace(name, i, group=f"{kind}: {name}"),
                    "legendgrouptitle": {"text": kind},
                    "x": [data["x"][k] for k in rows],
                    "y": [data["y"][k] for k in rows],
                    "customdata": rows,
                    "text": [about[k] for k in rows],
                    "mode": "markers",
                    "marker": {"color": style.colour, "symbol": symbols, "size": 7, "opacity": 0.8},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    return {"data": traces, "layout": layout}


def _reliability(data: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    panels = data["panels"]
    axis = {"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.2, "constrain": "domain"}
    layout = panel_layout(
        [panel["title"] for panel in panels],
        square=True,
        x={**axis, "title": axis_title("confidence")},
        y={**axis, "title": axis_title("accuracy")},
    )
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        _diagonal(layout, i)
        _calibration_errors(layout, i, panel["series"], styles)
        most = max((n or 0 for series in panel["series"] for n in series["count"]), default=1)
        traces += [_bins(series, styles[series["name"]], most, i) for series in panel["series"]]
    return {"data": named_once(traces), "layout": layout}


def _bins(series: Mapping[str, Any], style: Style, most: int, panel: int) -> Trace:
    """Bins without images are left out; the size of a marker says how many images are in its bin."""
    columns = (series["confidence"], series["accuracy"], series["count"])
    full = [(c, a, n) for c, a, n in zip(*columns, strict=True) if n and c is not None and a is not None]
    return {
        **new_trace(series["name"], panel),
        "x": [c for c, _, _ in full],
        "y": [a for _, a, _ in full],
        "mode": "lines+markers",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {
            "color": style.colour,
            "symbol": style.marker,
            "size": [round(5 + 11 * sqrt(n / most), 1) for _, _, n in full],
            "opacity": 0.85,
            "line": {"width": 0},
        },
        "text": [f"{n:,} images" for _, _, n in full],
        "hovertemplate": NAME + "confidence %{x:.1%}<br>accuracy %{y:.1%}<br>%{text}<extra></extra>",
    }


def _diagonal(layout: dict[str, Any], i: int) -> None:
    line = {"color": FAINT, "width": 1, "dash": "dot"}
    ends = {"xref": axis_name("x", i), "yref": axis_name("y", i), "x0": 0, "y0": 0, "x1": 1, "y1": 1}
    layout["shapes"].append({"type": "line", **ends, "line": line, "layer": "below"})


def _calibration_errors(layout: dict[str, Any], i: int, series: Sequence[Mapping[str, Any]], styles: Styles) -> None:
    """Each method's expected calibration error, in its colour, in the corner that overconfident curves leave free."""
    corner = {"x": 0.02, "y": 0.98, "xanchor": "left", "yanchor": "top"}
    known = [(one["name"], one["ece"]) for one in series if one.get("ece") is not None]
    if known:
        note(layout, i, "ECE", **corner, font={"size": 11, "color": FAINT})
    for k, (name, ece) in enumerate(known, start=1):
        label = f"{text(name)} {100 * ece:.1f} %"
        note(layout, i, label, **corner, yshift=-15 * k, font={"size": 11, "color": styles[name].colour})


def _scatter(data: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    panels = data["panels"]
    percent = bool(data.get("percent"))
    layout = panel_layout([""] * len(panels), y={"title": axis_title(text(data["y"])), **share_axis(percent)})
    traces: list[Trace] = []
    for i, panel in enumerate(panels, start=1):
        axis = layout[axis_name("xaxis", i)]
        axis["title"] = axis_title(f"<b>{lined(panel['title'], 40)}</b>")
        ticks = categories(panel["points"])
        if ticks:
            axis |= {"tickvals": list(ticks.values()), "ticktext": [text(name) for name in ticks]}
            axis |= {"range": [-0.5, len(ticks) - 0.5], "showgrid": False}
        elif panel.get("log_x"):
            axis |= log_axis(point["x"] for point in panel["points"])
        for name in dict.fromkeys(point["name"] for point in panel["points"]):
            traces.append(_cloud(name, panel["points"], styles[name], percent, i))
    return {"data": named_once(traces), "layout": layout}


def _cloud(name: str, points: Sequence[Mapping[str, Any]], style: Style, percent: bool, panel: int) -> Trace:
    """One method's points of a panel."""
    mine = [point for point in points if point["name"] == name]
    shown = ".1%" if percent else ".4~g"
    return {
        **new_trace(name, panel),
        "x": positions(points, name),
        "y": numbers(point["y"] for point in mine),
        "customdata": [text(f"{p['x']:.4g}" if is_number(p["x"]) else p["x"]) for p in mine],
        "text": [lined(point.get("text") or "", 60) for point in mine],
        "mode": "markers",
        "marker": {"color": style.colour, "symbol": style.marker, "size": 8, "opacity": 0.75},
        "hovertemplate": f"{NAME}%{{y:{shown}}} at %{{customdata}}<br>%{{text}}<extra></extra>",
    }


def categories(points: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Positions on the axis of values that are text; empty where all are numbers."""
    if all(is_number(point["x"]) for point in points):
        return {}
    return {name: k for k, name in enumerate(sorted({str(point["x"]) for point in points}))}


def positions(points: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Where one method's points stand; above a category, methods stand side by side."""
    ticks = categories(points)
    names = list(dict.fromkeys(point["name"] for point in points))
    shift = (names.index(name) - (len(names) - 1) / 2) * min(0.2, 0.8 / len(names)) if ticks else 0.0
    return [ticks[str(p["x"])] + shift if ticks else p["x"] for p in points if p["name"] == name]


_KINDS: dict[str, Callable[[Mapping[str, Any], Styles], dict[str, Any]]] = {
    "lines": _lines,
    "landscape": _landscape,
    "points": _points,
    "reliability": _reliability,
    "scatter": _scatter,
}


def _plain(number: float, percent: bool) -> str:
    return f"{100 * number:.1f}%" if percent else f"{number:.2g}"


def has_markers(x: Sized) -> bool:
    """Each point of a short curve has one; two points are a level, and a long curve is a line."""
    return len(x) <= FEW and len(x) != 2


def _level(layout: dict[str, Any], i: int, reach: Sequence[float], height: float, label: str) -> Trace:
    """A dotted line under all curves, with its name on it."""
    where = {"xref": f"{axis_name('x', i)} domain", "yref": axis_name("y", i), "showarrow": False}
    # On a logarithmic axis Plotly takes the exponent for an annotation's y, and the value for a line's.
    y = log10(height) if layout[axis_name("yaxis", i)].get("type") == "log" else height
    corner = {"x": 1, "y": y, "xanchor": "right", "yanchor": "bottom"}
    layout["annotations"].append({"text": label, **where, **corner, "font": {"size": 11, "color": FAINT}})
    line = {"color": FAINT, "width": 1.2, "dash": "dot"}
    ends = {"x": [min(reach), max(reach)], "y": [height, height]}
    return {**new_trace(label, i), **ends, "mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False}
