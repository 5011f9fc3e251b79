"""One style per method, the same in every figure and on paper: a colour, a dash and a marker.

Figures are drawn in the colours of a light page; `DARK` says what each becomes on a dark one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bayescal.benchmark.results import Figure
from bayescal.report.plots import COLOURS, FAINT, INK

GRID, PAPER = "#e4e4e4", "#ffffff"
BAND = 0.15  # opacity of a standard error
# The same hues, light enough for a dark page, and still apart for colour-blind readers.
ON_DARK = ("#4a9fe0", "#f2803a", "#22b98d", "#dd93bd", "#f5c044", "#9fdcff", "#c4c9cf")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down")
# The methods that most figures show come first, so that a method looks the same in every report.
USUAL = ("Bayes-CAL", "CAL", "CoOp", "CoCoOp", "DPLCLIP", "CLIP-Adapter", "CLIP zero-shot")
SAME = {"clip": "clipzeroshot", "zeroshot": "clipzeroshot", "zeroshotclip": "clipzeroshot"}


@dataclass(frozen=True)
class Style:
    colour: str
    dash: str
    marker: str

    @property
    def band(self) -> str:
        return faded(self.colour, BAND)


Styles = Mapping[str, Style]


def faded(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def nth_style(i: int) -> Style:
    """Dashes and markers go round with other periods than colours do, so that styles differ in grey print too."""
    return Style(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])


def styles_for(figures: Iterable[Figure]) -> dict[str, Style]:
    """A style for every series of these figures, by name. Usual methods have theirs; others take the next free one."""
    numbers = {_key(name): i for i, name in enumerate(USUAL)}
    names = list(dict.fromkeys(name for figure in figures for name in _series(figure)))
    for name in names:
        numbers.setdefault(_key(name), len(numbers))
    return {name: nth_style(numbers[_key(name)]) for name in names}


def dark_colours() -> dict[str, str]:
    """Each colour of a figure on a light page, and what it is on a dark one."""
    pairs = dict(zip(COLOURS, ON_DARK, strict=True))
    bands = {faded(light, BAND): faded(dark, BAND + 0.05) for light, dark in pairs.items()}
    return {**pairs, **bands, INK: "#e3e6ea", FAINT: "#8b949f", GRID: "#2f353d", PAPER: "#20252b"}


def _series(figure: Figure) -> list[str]:
    """Names of methods in a figure; what a damaged figure has instead is not this function's business."""
    names = []
    for panel in figure.data.get("panels") or ():
        for part in [*(panel.get("series") or ()), *(panel.get("points") or ())]:
            names.append(str(part.get("name", "")))
    return names


def _key(name: str) -> str:
    """The same method however it is written: "Bayes-CAL", "bayes_cal"."""
    key = re.sub(r"[^a-z0-9]+", "", name.lower()) or name
    return SAME.get(key, key)
