"""Figures for paper and slides: the same five kinds, drawn by matplotlib in the style of `bayescal.report.plots`."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescal.benchmark.results import Figure
from bayescal.errors import DataError
from bayescal.report.plotly_figures import STEEP, categories, has_markers, positions
from bayescal.report.plots import COLOURS, DPI, FAINT, INK, STYLE, literal
from bayescal.report.styles import BAND, GRID, Style, Styles, nth_style, styles_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

DASH = {"solid": "-", "dash": (0, (5, 1.5)), "dot": (0, (1.2, 1.2)), "dashdot": (0, (5, 1.5, 1.2, 1.5))}
MARKER = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "triangle-down": "v"}
WIDTH, HEIGHT, SQUARE = 4.1, 3.0, 3.7  # inches of a panel
LINE = 0.2  # inches of a line of a legend


def matplotlib_figure(figure: Figure, styles: Styles | None = None) -> "MatplotlibFigure":
    """A still figure; `bayescal.report.plots.save_figure` writes it. `styles`: as for `plotly_figure`."""
    from matplotlib import style

    draw = _KINDS.get(figure.kind)
    if draw is None:
        raise DataError(f"figure {figure.key!r}: unknown kind {figure.kind!r}; expected one of {', '.join(_KINDS)}")
    try:
        with style.context(["default", STYLE, {"axes.titlesize": 10.5}]):
            fig = draw(figure.data, styles_for([figure]) if styles is None else styles)
            fig.suptitle(literal(figure.title, 90), x=0.01, ha="left", fontsize=12, fontweight="bold")
            return fig
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(
            f"figure {figure.key!r} of kind {figure.kind!r} cannot be drawn ({type(error).__name__}: {error}); "
            f"docs/experiments.md says what its data have to be"
        ) from error


def _lines(data: Mapping[str, Any], styles: Styles) -> "MatplotlibFigure":
    fig, axes = _panels(data["panels"], HEIGHT)
    for ax, panel in zip(axes, data["panels"], strict=True):
        for series in panel["series"]:
            _curve(ax, series, styles[series["name"]])
        if panel.get("chance") is not None:
            _level(ax, panel["chance"], "chance")
        if data.get("log_y"):
            ax.set_yscale("log")
        ax.set(xlabel=literal(data["x"]), ylabel=literal(data["y"]))
        _dress(ax, bool(data.get("percent")))
    _legend(fig, axes)
    return fig


def _curve(ax: "Axes", series: Mapping[str, Any], style: Style) -> None:
    x, y = _floats(series["x"]), _floats(series["y"])
    marker = MARKER[style.marker] if has_markers(x) else None
    line = {"color": style.colour, "linestyle": DASH[style.dash], "linewidth": 1.7}
    ax.plot(x, y, marker=marker, markersize=4, label=literal(series["name"]), **line)
    if series.get("error"):
        error = np.nan_to_num(_floats(series["error"]))
        ax.fill_between(x, y - error, y + error, color=style.colour, alpha=BAND, linewidth=0)


def _landscape(data: Mapping[str, Any], styles: Styles) -> "MatplotlibFigure":
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    panels = data["panels"]
    fig, axes = _panels(panels, SQUARE - 0.5)
    for ax, panel in zip(axes, panels, strict=True):
        losses = np.array([_floats(row) for row in panel["z"]])
        low, high = np.nanmin(losses), np.nanmax(losses)
        steep = low > 0 and high / low > STEEP
        levels = np.geomspace(low, high, 16) if steep else np.linspace(low, high, 16)
        norm = LogNorm(low, high) if steep else None
        filled = ax.contourf(panel["x"], panel["y"], losses, levels=levels, cmap="cividis", norm=norm)
        ax.contour(panel["x"], panel["y"], losses, levels=levels, colors="white", linewidths=0.3, alpha=0.5)
        bar = fig.colorbar(filled, ax=ax, aspect=30, pad=0.02, ticks=levels[::5])
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
        bar.ax.set_title("loss", fontsize=8, fontweight="normal", loc="center")
        _path(ax, panel)
        for name, share, number in zip("xy", panel["explained"], (1, 2), strict=True):
            label = f"direction {number}" if share is None else f"direction {number} ({share:.0%} of the path)"
            ax.set(**{f"{name}label": label})
    _legend(fig, axes)
    return fig


def _path(ax: "Axes", panel: Mapping[str, Any]) -> None:
    path = np.array(panel["path"], dtype=float).reshape(-1, 2)
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.8}
    ax.plot(*path.T, color="black", linewidth=3)
    ax.plot(*path.T, color="white", linewidth=1.5, marker="o", markersize=2.5, label="path (dots: epochs)")
    ends = [(path[:1], "o", 7, "start"), (path[-1:], "s", 7, "end")]
    if panel.get("best"):
        ends.append((np.array([panel["best"]], dtype=float), "*", 13, "smallest loss"))
    for point, marker, size, label in ends:
        ax.plot(*point.T, color="white", marker=marker, markersize=size, linestyle="none", label=label, **edge)


def _points(data: Mapping[str, Any], styles: Styles) -> "MatplotlibFigure":
    """The same points twice: coloured by class and by environment."""
    kinds = ("class", "environment")
    names = (data["classes"], data["environments"])
    titles = [f"by {kind}" + _unnamed(listed) for kind, listed in zip(kinds, names, strict=True)]
    fig, axes = _panels([{"title": title} for title in titles], SQUARE)
    rows = max((ceil(len(listed) / 4) for listed in names if not _unnamed(listed)), default=0)
    fig.set_figheight(fig.get_figheight() + LINE * rows)
    x, y = _floats(data["x"]), _floats(data["y"])
    new = data.get("new") or []  # classes kept for new names: crosses, and all others discs
    is_new = np.isin(data["class"], new)
    for ax, kind, listed in zip(axes, kinds, names, strict=True):
        ids = np.array(data[kind])
        for number, name in enumerate(listed):
            style, mine = nth_style(number), ids == number
            how = {"s": 14, "color": style.colour, "alpha": 0.8, "lw": 0}
            if not new:
                ax.scatter(x[mine], y[mine], marker=MARKER[style.marker], label=literal(name), **how)
                continue
            label = literal(f"{name} (new)" if kind == "class" and number in new else name)
            for part, marker in ((mine & ~is_new, "o"), (mine & is_new, "X")):
                if part.any():
                    ax.scatter(x[part], y[part], marker=marker, label=label, **how)
                    label = None
        ax.set(xticks=[], yticks=[])
        if not _unnamed(listed):
            options = {"loc": "upper left", "bbox_to_anchor": (0, -0.01), "ncols": 4, "fontsize": 8}
            ax.legend(**options, handletextpad=0.1, columnspacing=0.8)
    return fig


def _unnamed(names: Sequence[str]) -> str:
    """Colours and markers repeat among very many names: a legend would only take the room of the points."""
    return f" ({len(names)} of them)" if len(names) > len(COLOURS) * len(MARKER) else ""


def _reliability(data: Mapping[str, Any], styles: Styles) -> "MatplotlibFigure":
    from matplotlib.ticker import PercentFormatter

    fig, axes = _panels(data["panels"], SQUARE)
    for ax, panel in zip(axes, data["panels"], strict=True):
        ax.plot([0, 1], [0, 1], color=FAINT, linestyle=":", linewidth=1)
        most = max((n or 0 for series in panel["series"] for n in series["count"]), default=1)
        for series in panel["series"]:
            _bins(ax, series, styles[series["name"]], most)
        known = [one for one in panel["series"] if one.get("ece") is not None]
        if known:
            _corner(ax, "ECE", 0, FAINT)
        for k, one in enumerate(known, start=1):
            label = literal(f"{one['name']} {100 * one['ece']:.1f} %")
            _corner(ax, label, k, styles[one["name"]].colour)
        ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy", aspect="equal")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.grid(color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)
    _legend(fig, axes)
    return fig


def _bins(ax: "Axes", series: Mapping[str, Any], style: Style, most: int) -> None:
    columns = (series["confidence"], series["accuracy"], series["count"])
    full = [(c, a, n) for c, a, n in zip(*columns, strict=True) if n and c is not None and a is not None]
    x, y, n = (list(column) for column in zip(*full, strict=True)) if full else ([], [], [])
    marker = MARKER[style.marker]
    line = {"color": style.colour, "linestyle": DASH[style.dash], "linewidth": 1.6}
    ax.plot(x, y, marker=marker, markersize=3.5, label=literal(series["name"]), **line)
    ax.scatter(
        x, y, [(3 + 8 * sqrt(k / most)) ** 2 for k in n], style.colour, marker=marker, alpha=0.85, lw=0, zorder=3
    )


def _corner(ax: "Axes", label: str, line: int, colour: str) -> None:
    """A line of text in the upper left corner, counted from above."""
    options = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "fontsize": 8}
    ax.annotate(label, (0.02, 0.98), (0, -11 * line), color=colour, **options)


def _scatter(data: Mapping[str, Any], styles: Styles) -> "MatplotlibFigure":
    fig, axes = _panels([panel | {"title": ""} for panel in map(dict, data["panels"])], HEIGHT)
    for ax, panel in zip(axes, data["panels"], strict=True):
        points = panel["points"]
        ticks = categories(points)
        for name in dict.fromkeys(point["name"] for point in points):
            mine = [point for point in points if point["name"] == name]
            x, style = positions(points, name), styles[name]
            y = _floats([point["y"] for point in mine])
            ax.scatter(x, y, 22, style.colour, marker=MARKER[style.marker], alpha=0.75, lw=0, label=literal(name))
        if ticks:
            ax.set_xticks(list(ticks.values()), [literal(name) for name in ticks])
            ax.set_xlim(-0.5, len(ticks) - 0.5)
        elif panel.get("log_x"):
            ax.set_xscale("log")
        ax.set_xlabel(literal(panel["title"], 40), fontweight="bold")
        ax.set_ylabel(literal(data["y"]))
        _dress(ax, bool(data.get("percent")))
    _legend(fig, axes)
    return fig


_KINDS: dict[str, Callable[[Mapping[str, Any], Styles], "MatplotlibFigure"]] = {
    "lines": _lines,
    "landscape": _landscape,
    "points": _points,
    "reliability": _reliability,
    "scatter": _scatter,
}


def _panels(panels: Sequence[Mapping[str, Any]], height: float) -> tuple["MatplotlibFigure", list["Axes"]]:
    """Axes in rows of three at most, each with its title."""
    from matplotlib.figure import Figure as MatplotlibFigure

    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = ceil(len(panels) / columns)
    size = (WIDTH * columns + (1.2 if columns == 1 else 0), height * rows + 0.9)
    fig = MatplotlibFigure(figsize=size, dpi=DPI, layout="constrained")
    axes = list(fig.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[len(panels) :]:
        ax.remove()
    for ax, panel in zip(axes, panels, strict=False):
        ax.set_title(literal(panel["title"], 44))
    return fig, axes[: len(panels)]


def _dress(ax: "Axes", percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    if percent:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    ax.grid(axis="y", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)


def _level(ax: "Axes", height: float, label: str) -> None:
    ax.axhline(height, color=FAINT, linestyle=":", linewidth=1.2, zorder=0)
    options = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "fontsize": 8}
    ax.annotate(label, (1, height), (0, 2), color=FAINT, **options)


def _legend(fig: "MatplotlibFigure", axes: Sequence["Axes"]) -> None:
    """One below all panels: each series once, in the order of the panels."""
    from matplotlib.lines import Line2D

    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    width = fig.get_size_inches()[0]
    longest = max(map(len, entries))
    columns = max(1, min(len(entries), int(width / (0.5 + 0.075 * longest))))
    fig.set_figheight(fig.get_figheight() + LINE * (ceil(len(entries) / columns) - 1))
    legend = fig.legend(entries.values(), entries, loc="outside lower left", ncols=columns, fontsize=9)
    for handle in legend.legend_handles:
        special = ("path (dots: epochs)", "start", "end", "smallest loss")
        if isinstance(handle, Line2D) and handle.get_label() in special:
            handle.set(
                markeredgecolor="black", markeredgewidth=0.8, color="white" if handle.get_linestyle() == "None" else INK
            )


def _floats(values: Any) -> np.ndarray:
    """Gaps are None in JSON and NaN here."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)
