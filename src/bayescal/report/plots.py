"""Figures for people: each function takes data and returns a matplotlib `Figure`; `save_figure` writes it.

matplotlib is imported inside the functions, because it takes half a second that a prediction need not spend.
Figures are made without pyplot, so nothing opens a window, needs a display or keeps a figure alive.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayescal.errors import BayescalError
from bayescal.util.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from PIL.Image import Image

DPI = 150
MOST_CLASSES = 60  # in a confusion matrix

# Okabe & Ito's colours, distinct for colour-blind readers too; their yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
INK, FAINT, EMPTY = "#222222", "#8a8a8a", "#eeeeee"

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "text.color": INK,
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "legend.frameon": False,
}


class ImageRow(NamedTuple):
    """A row of an image grid: its title, its images, and, if wanted, a caption under each image."""

    title: str
    images: Sequence["Image"]
    captions: Sequence[str] = ()


def _styled(draw: Callable) -> Callable:
    """Draw with this file's style, whatever the reader's matplotlibrc says, and leave that as it was."""

    @wraps(draw)
    def wrapper(*args, **kwargs):
        from matplotlib import style

        with style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return wrapper


@_styled
def confusion_matrix_figure(matrix, names: Sequence[str], title: str = "Confusion matrix") -> "Figure":
    """Where each class ends up. `matrix (C, C)` counts (sparse or not), rows = truth; colour is the share of the row.

    Up to 12 classes each cell says its share and its count; beyond that colours alone can be read, and of very many
    classes those with the most mistakes are shown: a picture of all would take memory by their square, for nothing.
    """
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import PercentFormatter

    counts, totals, shown = _most_confused(matrix, len(names))
    if len(shown) < len(names):
        title = f"{title}; the {len(shown)} of {len(names):,} classes with the most mistakes"
    names, n = [str(names[i]) for i in shown.tolist()], len(shown)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = counts / totals
    annotated = n <= 12
    side = max(3.0, n * (0.72 if annotated else max(0.16, 0.5 - 0.02 * (n - 12))))  # inches
    fig = _figure(side + 2.4, side + 1.6)
    ax = fig.subplots()
    colours = colormaps["Blues"].with_extremes(bad=EMPTY)
    # Among many classes each confusion is rare: a square-root scale keeps it visible where no number says it.
    image = ax.imshow(shares, cmap=colours, norm=PowerNorm(1.0 if annotated else 0.5, vmin=0, vmax=1))

    labels = [literal(name) for name in names]
    size = 10 if annotated else max(5.5, 9 - 0.07 * (n - 12))
    ax.set_yticks(range(n), labels, fontsize=size)
    if not annotated:
        ax.set_xticks(range(n), labels, fontsize=size, rotation=90)
    elif max(map(len, names)) * 0.085 <= side / n:  # inches a name needs, inches a cell has
        ax.set_xticks(range(n), labels, fontsize=size)
    else:
        ax.set_xticks(range(n), labels, fontsize=size, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(xlabel="predicted", ylabel="true")
    ax.set_title(literal(title))
    ax.spines[:].set_visible(False)
    # White lines keep neighbouring cells apart.
    ax.set_xticks(np.arange(n + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(n + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.5 if annotated else 0.4)
    ax.tick_params(which="both", length=0)
    for i, j in np.ndindex(n, n) if annotated else ():
        share = f"{shares[i, j]:.0%}" if totals[i, 0] else "–"
        colour = "white" if shares[i, j] > 0.5 else INK if counts[i, j] else FAINT
        for label, up, points in ((share, 4, 10), (f"{counts[i, j]:.0f}", -9, 7)):
            _note(ax, label, (j, i), (0, up), ha="center", fontsize=points, color=colour)
    bar = fig.colorbar(image, ax=ax, shrink=0.6, aspect=25, ticks=np.linspace(0, 1, 6))
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bar.ax.minorticks_off()
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    return fig


def _most_confused(matrix, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (k, k) of the classes with the most mistakes, in their order; how many images each has (k, 1); which."""
    from scipy.sparse import csr_array

    counts = csr_array(matrix if hasattr(matrix, "tocsr") else _array(matrix))
    if counts.shape != (n, n):
        raise ValueError(f"expected a matrix of {n} × {n} counts, one row per name; got shape {counts.shape}")
    totals = counts.sum(axis=1)
    wrong = counts.sum(axis=0) + totals - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
    return counts[shown][:, shown].toarray(), totals[shown, None], shown


class BarPanel(NamedTuple):
    """A question: sample images, the accuracy (mean, standard error) of each name in each series, and the answer."""

    title: str
    rows: Sequence[ImageRow]
    names: Sequence[str]
    series: Mapping[str, Sequence[tuple[float, float]]]  # fractions; NaN: no number, or no error
    chance: float
    sentence: str


@_styled
def demo_figure(panels: Sequence[BarPanel]) -> "Figure":
    """One question below the other: what the data look like left, what came out right, in words beneath."""
    size, right = 0.92, 6.2
    arranged = [_arranged(panel.rows, size) for panel in panels]
    left = max(size * columns for _, columns, _ in arranged) + 0.2
    wide = int((left + right) / 0.073)
    said = [textwrap.fill(literal(panel.sentence), wide) for panel in panels]
    heights = [
        max(sum(own), 0.24 * len(panel.names) * len(panel.series) + 1.0) + 0.45 + 0.19 * (text.count("\n") + 1)
        for panel, text, (_, _, own) in zip(panels, said, arranged, strict=True)
    ]
    fig = _figure(left + right, sum(heights))
    strips = fig.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, text, strip, (rows, _, tall) in zip(panels, said, strips, arranged, strict=True):
        strip.suptitle(literal(panel.title), x=0.004, ha="left", fontsize=13, fontweight="bold")
        strip.supxlabel(text, x=0.004, ha="left", fontsize=10)
        images, plot = np.ravel(strip.subfigures(1, 2, width_ratios=[left, right]))
        _draw_images(images, rows, tall)
        _draw_bars(plot.subplots(), panel)
    return fig


def _draw_bars(ax: "Axes", panel: BarPanel) -> None:
    """A group of bars for each name, one for each series, with errors and numbers."""
    from matplotlib.ticker import PercentFormatter

    thickness = 0.8 / len(panel.series)
    positions = np.arange(len(panel.names))
    colours = (COLOURS[5], COLOURS[0]) if len(panel.series) > 1 else (COLOURS[0],)
    for k, (name, numbers) in enumerate(panel.series.items()):
        mean, error = np.array(numbers, dtype=np.float64).T
        at = positions + (k - (len(panel.series) - 1) / 2) * thickness
        ax.barh(at, np.nan_to_num(mean), thickness * 0.88, color=colours[k % len(colours)], label=literal(name))
        ax.errorbar(mean, at, xerr=np.where(error > 0, error, np.nan), fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        for value, spread, height in zip(mean, np.nan_to_num(error), at, strict=True):
            plus = f" ± {100 * spread:.0f}" if spread > 0 else ""
            label = "none given" if np.isnan(value) else f"{100 * value:.0f}{plus}"
            _note(ax, label, (np.nan_to_num(value) + spread, height), (4, 0), fontsize=8)
    ax.axvline(panel.chance, color=INK, linestyle=":", linewidth=1)
    _note(ax, "chance", (panel.chance, -0.5), (0, 5), ha="center", fontsize=8)
    ax.set_yticks(positions, [textwrap.fill(literal(name), 20) for name in panel.names])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(panel.names) - 0.5, -0.5)
    ax.set_xlim(0, 1.14)
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.spines["bottom"].set_bounds(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    several = any(np.isfinite(error) for numbers in panel.series.values() for _, error in numbers)
    ax.set_xlabel(f"test accuracy{', mean ± standard error over seeds' if several else ''}")
    if len(panel.series) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.03), ncols=2, fontsize=9, handlelength=1.2)


_PROGRAM = {"png": "Software", "svg": "Creator", "pdf": "Creator"}  # what each format calls the program


@_styled
def save_figure(fig: "Figure", path: str | Path, mark: str | None = None) -> Path:
    """Write the figure; the ending of the name says the format (.png, .svg, .pdf, …). All or nothing.

    Missing folders are made. `mark` is written into the file as the program that made it.
    The file appears under its name only when it is complete.
    (Drawn in style like the rest, because matplotlib makes tick marks only now.)
    """
    path = Path(path)
    formats, ending = fig.canvas.get_supported_filetypes(), path.suffix.lower().lstrip(".")
    if ending not in formats:
        raise BayescalError(
            f"cannot write a picture as '{path.name}': the name has to end in one of "
            f"{', '.join('.' + name for name in sorted(formats))}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {_PROGRAM[ending]: mark} if mark and ending in _PROGRAM else None
    with replacing(path) as draft:
        fig.savefig(
            draft, metadata=metadata, format=ending, dpi=DPI, facecolor="white", bbox_inches="tight", pad_inches=0.12
        )
    return path


def _draw_images(fig: "SubFigure", rows: Sequence[ImageRow], heights: Sequence[float]) -> None:
    """One strip per row: the title above, images side by side, captions below."""
    strips = fig.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for strip, row in zip(strips, rows, strict=True):
        strip.suptitle(literal(row.title), x=0.01, ha="left", fontsize=9.5)
        axes = strip.subplots(1, max(len(row.images) for row in rows), squeeze=False)[0]
        for i, ax in enumerate(axes):
            ax.set_axis_off()
            ax.set_anchor("N")  # room left over goes below, between this row and the next title
            if i < len(row.images):
                pixels = np.asarray(row.images[i].convert("RGB"))
                # Blurring an 8 × 8 digit hides it; a photograph wants smoothing.
                ax.imshow(pixels, interpolation="nearest" if max(pixels.shape) < 64 else "antialiased")
            if i < len(row.captions):
                caption = literal(row.captions[i])
                ax.text(0.5, -0.06, caption, transform=ax.transAxes, ha="center", va="top", fontsize=7.5)


def _arranged(rows: Sequence[ImageRow], size: float) -> tuple[list[ImageRow], int, list[float]]:
    """Rows with their text broken into lines, the number of columns, and the inches each row needs.

    `size` is the side of an image; a letter of a title is about 0.078 inches wide, one of a caption 0.06.
    """
    columns = max(len(row.images) for row in rows)
    title, caption = (textwrap.TextWrapper(int(w)) for w in (size * columns / 0.078, size / 0.06))
    rows = [ImageRow(title.fill(t), images, [*map(caption.fill, c)]) for t, images, c in rows]
    above = [row.title.count("\n") + 1 for row in rows]
    below = [max((caption.count("\n") + 1 for caption in row.captions), default=0) for row in rows]
    tall = [max((image.height / image.width for image in row.images), default=1) for row in rows]
    lines = zip(tall, above, below, strict=True)
    return rows, columns, [size * t + 0.18 * a + 0.14 * b + 0.2 for t, a, b in lines]


def _note(ax: "Axes", label: str, at: tuple[float, float], shift: tuple[float, float], **style) -> None:
    """Text beside a point of the data, moved by `shift` points."""
    ax.annotate(label, at, shift, textcoords="offset points", va="center", annotation_clip=False, **style)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _array(values) -> np.ndarray:
    """Tensors (on any device), sequences and arrays alike, as float64."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64)


def literal(text: str, width: int = 0) -> str:
    """A user's text as it is (a pair of dollar signs would be a formula), in lines where a width is given."""
    escaped = str(text).replace("$", r"\$")
    return "\n".join(textwrap.wrap(escaped, width)) if width else escaped
