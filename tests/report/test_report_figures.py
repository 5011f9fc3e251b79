"""Every kind of figure, by Plotly and by matplotlib: nothing lost, nothing read as markup, one style per method."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import sample
from PIL import Image

from bayescal.benchmark.results import Figure
from bayescal.errors import DataError
from bayescal.report import matplotlib_figure, plotly_figure
from bayescal.report.plotly_layout import axis_name, panel_layout
from bayescal.report.plots import COLOURS, save_figure
from bayescal.report.styles import dark_colours, faded, styles_for

FIGURES = [
    sample.curves(),
    sample.risk_coverage(),
    sample.losses(),
    sample.landscape(),
    sample.tsne(40),
    sample.reliability(),
    sample.scatter(),
]
BY_NAME = pytest.mark.parametrize("figure", FIGURES, ids=[figure.key for figure in FIGURES])


@BY_NAME
def test_plotly_knows_every_key(figure):
    from plotly.graph_objects import Figure as Checked

    drawn = plotly_figure(figure)
    assert len(Checked(drawn).data) == len(drawn["data"]) > 0


@BY_NAME
def test_no_name_is_read_as_markup(figure):
    """Tags, formulas and templates may only be our own."""
    drawn = plotly_figure(figure)
    texts = {name: part for name, part in drawn["layout"].items() if name != "meta"}  # read by page.js, as it is
    names = [trace.get("name") for trace in drawn["data"]]
    points = [trace.get("text") for trace in drawn["data"]]
    for text in map(json.dumps, (texts, names, points)):
        assert not set(re.findall(r"</?(\w+)", text)) - {"b", "br"}
        assert "$" not in text
        assert "%{" not in text


@BY_NAME
def test_still_pictures_are_drawn(figure, tmp_path):
    path = save_figure(matplotlib_figure(figure), tmp_path / "figure.png")
    image = Image.open(path).convert("L")
    assert min(image.size) > 400
    assert len(image.getcolors(256)) > 30  # more than a frame on white


def test_a_method_has_one_look_in_all_figures():
    figures = [sample.losses(), sample.scatter(), sample.curves(), sample.reliability()]
    styles = styles_for(figures)
    colours: dict[str, set[str]] = {}
    for figure in figures:
        for trace in plotly_figure(figure, styles)["data"]:
            if trace["name"] != "chance":
                colours.setdefault(trace["name"], set()).add(trace.get("line", trace.get("marker"))["color"])
    assert all(len(seen) == 1 for seen in colours.values()), colours
    assert len({(style.colour, style.dash) for style in styles.values()}) == len(styles)
    assert styles_for([sample.curves()])["Bayes-CAL"] == styles["Bayes-CAL"]  # whatever else is shown


def test_spellings_of_a_method_are_one_method():
    names = ("bayes-cal", "Bayes-CAL", "bayes_cal")
    series = [{"name": name, "x": [1], "y": [1], "error": None} for name in names]
    styles = styles_for([Figure("f", "", "lines", {"panels": [{"series": series}]})])
    assert len(set(styles.values())) == 1


def test_every_colour_has_one_for_a_dark_page():
    dark = dark_colours()
    assert set(COLOURS) < set(dark)
    assert faded(COLOURS[0], 0.15) in dark
    assert len(set(dark.values())) == len(dark)
    used = {
        colour
        for figure in FIGURES
        for colour in re.findall(r'"(?:fill)?color": "([^"]+)"', json.dumps(plotly_figure(figure), ensure_ascii=False))
    }
    on_both = {"white", "black", "rgba(255,255,255,0.35)"}  # on the colours of a landscape
    assert used - set(dark) <= on_both


def test_gaps_are_null_and_bands_surround_the_line():
    traces = plotly_figure(sample.curves())["data"]
    band, line = traces[:2]
    assert line["y"][5] is None
    assert band["fill"] == "toself"
    assert len(band["x"]) == 2 * 29
    assert band["y"][0] == pytest.approx(line["y"][0] + sample.curves().data["panels"][0]["series"][0]["error"][0])


def test_each_method_is_named_once_in_a_legend():
    traces = plotly_figure(sample.curves())["data"]
    named = [trace["name"] for trace in traces if trace["showlegend"]]
    assert named == [*sample.METHODS[:5], "CLIP zero-shot"]


def test_empty_bins_are_left_out():
    trace = plotly_figure(sample.reliability())["data"][0]
    assert len(trace["x"]) == len(trace["y"]) == len(trace["marker"]["size"]) == 9


def test_only_pictures_inside_the_page_are_kept():
    figure = sample.tsne(3)
    outside = ["https://example.org/a.png", "data:text/html,<script>", figure.data["thumbnails"][0]]
    drawn = plotly_figure(replace(figure, data={**figure.data, "thumbnails": outside}))
    assert drawn["layout"]["meta"]["thumbnails"] == ["", "", outside[2]]


def test_new_classes_have_a_marker_of_their_own():
    figure = sample.tsne(40)
    figure = replace(figure, data={**figure.data, "new": [1, 6]})
    traces = plotly_figure(figure)["data"]
    by_class = {trace["name"]: trace["marker"]["symbol"] for trace in traces if trace["xaxis"] == "x"}
    assert by_class["elephant (new)"] == "x"
    assert by_class["dog"] == "circle"
    art = next(trace for trace in traces if trace["name"] == "art painting")
    assert art["marker"]["symbol"] == [
        "x" if figure.data["class"][k] in (1, 6) else "circle" for k in art["customdata"]
    ]
    by_class, by_environment = matplotlib_figure(figure).axes[:2]
    assert "elephant (new)" in [text.get_text() for text in by_class.get_legend().get_texts()]
    assert len(by_environment.get_legend().get_texts()) == 4


def test_words_on_an_axis_stand_side_by_side():
    traces = [trace for trace in plotly_figure(sample.scatter())["data"] if trace["xaxis"] == "x3"]
    assert [{round(x, 2) for x in trace["x"]} for trace in traces] == [{-0.1, 0.9}, {0.1, 1.1}]


@pytest.mark.parametrize("draw", [plotly_figure, matplotlib_figure])
@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("pie", {}, "unknown kind 'pie'; expected one of lines"),
        ("lines", {"panels": [{"title": "", "series": [{"name": "a"}]}]}, "cannot be drawn"),
        ("points", {"x": [1]}, "docs/experiments.md"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw, kind, data, said):
    with pytest.raises(DataError, match=re.escape(said)) as failure:
        draw(Figure("fig-3", "", kind, data))
    assert "fig-3" in str(failure.value)


@pytest.mark.parametrize(("panels", "rows"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_panels_are_equally_large_and_apart(panels, rows):
    layout = panel_layout([f"panel {i}" for i in range(panels)], y={"tickformat": ".0%"})
    boxes = [(layout[axis_name("xaxis", i)], layout[axis_name("yaxis", i)]) for i in range(1, panels + 1)]
    assert axis_name("xaxis", panels + 1) not in layout
    assert len({tuple(y["domain"]) for _, y in boxes}) == rows
    assert {y["tickformat"] for _, y in boxes} == {".0%"}
    for axes in zip(*boxes, strict=True):
        lows, highs = zip(*sorted({tuple(axis["domain"]) for axis in axes}), strict=True)
        assert all(after - before > 0.05 for before, after in pairwise(sorted([*lows, *highs])))
        assert len({round(high - low, 6) for low, high in zip(lows, highs, strict=True)}) == 1
    assert "template" not in layout  # Plotly's own colours would be in every figure of the page
