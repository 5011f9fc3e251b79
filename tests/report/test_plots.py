"""Figures say what the data say, stay legible, and reach the disk whole or not at all."""

import subprocess
import sys
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from bayescal.errors import BayescalError
from bayescal.report import plots


def boxes(fig, artists):
    fig.draw_without_rendering()
    return [artist.get_window_extent() for artist in artists]


def words(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def squares(n: int, colour=(200, 30, 30)) -> list[Image.Image]:
    return [Image.new("RGB", (8, 8), colour) for _ in range(n)]


def one_question(rows=None, name="CoOp", title="One", numbers=((0.9, 0.01),)):
    panel = plots.BarPanel(
        title, rows or [plots.ImageRow("train", squares(4))], [name], {"seen": numbers}, 0.5, "Words"
    )
    return plots.demo_figure([panel])


def test_matplotlib_is_loaded_late_and_pyplot_never():
    code = (
        "import sys, bayescal.report.plots as p; assert 'matplotlib' not in sys.modules\n"
        "p.confusion_matrix_figure([[3, 1], [0, 2]], ['a', 'b'])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readers_settings_neither_matter_nor_change(tmp_path):
    def pixels(name):
        return np.asarray(Image.open(plots.save_figure(one_question(), tmp_path / name)))

    plain = pixels("a.png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert np.array_equal(pixels("b.png"), plain)
        assert matplotlib.rcParams["font.size"] == 30


def test_confusion_matrix_says_share_and_count_of_each_row():
    fig = plots.confusion_matrix_figure(torch.tensor([[3, 1], [0, 0]]), ["cat", "dog"])
    assert words(fig.axes[0]) == ["75%", "3", "25%", "1", "–", "0", "–", "0"]
    shown = np.ma.getdata(fig.axes[0].images[0].get_array())
    assert shown[0].tolist() == [0.75, 0.25]  # rows are the truth
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["cat", "dog"]
    assert fig.axes[0].get_ylabel() == "true"


def test_of_very_many_classes_those_with_the_most_mistakes_are_drawn():
    """A picture of a thousand classes would take gigabytes, and nobody could read it."""
    counts = np.diag(np.full(1000, 5))
    counts[700, 3] = counts[20, 21] = 4
    figure = plots.confusion_matrix_figure(counts, [f"class {i}" for i in range(1000)])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == 60
    assert {"class 3", "class 20", "class 21", "class 700"} <= set(labels)
    assert "60 of 1,000 classes" in figure.axes[0].get_title(loc="left")
    shares = figure.axes[0].images[0].get_array()
    assert shares[labels.index("class 700"), labels.index("class 3")] == pytest.approx(4 / 9)
    assert max(figure.get_size_inches()) < 20


def test_confusion_matrix_refuses_names_that_do_not_fit():
    with pytest.raises(ValueError, match="3 × 3"):
        plots.confusion_matrix_figure(np.eye(2), ["a", "b", "c"])


@pytest.mark.parametrize("n", [2, 12, 13, 65])
def test_confusion_matrix_is_legible(n):
    fig = plots.confusion_matrix_figure(np.full((n, n), 1234), [f"alarm clock {i}" for i in range(n)])
    ax = fig.axes[0]
    assert (len(ax.texts) == 2 * n * n) == (n <= 12)
    names = boxes(fig, ax.get_yticklabels())
    assert all(not a.overlaps(b) for a, b in pairwise(names))
    cell = ax.get_window_extent().width / n
    assert all(box.width < cell for box in boxes(fig, ax.texts))
    # Turned by 90 degrees the names of the columns have their height for a width.
    turned = boxes(fig, ax.get_xticklabels())
    if n > 12:
        assert all(not a.overlaps(b) for a, b in pairwise(turned))


def test_images_of_a_question_are_shown_with_their_words():
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8), "L")
    fig = one_question([plots.ImageRow("seen", squares(3), ["one", "two", "three"]), plots.ImageRow("unseen", [grey])])
    shown = [ax.images[0].get_array() for ax in fig.axes if ax.images]
    assert [a.shape for a in shown] == [(8, 8, 3)] * 4
    assert shown[0][0, 0].tolist() == [200, 30, 30]
    assert [w for ax in fig.axes if not ax.patches for w in words(ax)] == ["one", "two", "three"]


def test_long_words_of_images_are_broken_not_cut():
    long = plots.ImageRow("a title far too long for two small images " * 2, squares(2), ["greater than four"] * 2)
    fig = one_question([long])
    (strip,) = fig.subfigs[0].subfigs[0].subfigs
    title, *captions = boxes(fig, [strip._suptitle, *(t for ax in strip.axes for t in ax.texts)])
    assert title.x1 <= strip.bbox.x1 + 1
    assert not captions[0].overlaps(captions[1])


def test_demo_figure_has_samples_bars_and_words_for_each_question():
    rows = [plots.ImageRow("train", squares(4)), plots.ImageRow("test", squares(3))]
    numbers = {"seen": [(0.9, 0.01), (0.8, np.nan)], "reversed": [(0.4, 0.05), (np.nan, np.nan)]}
    panels = [plots.BarPanel(t, rows, ["CoOp", "Bayes-CAL"], numbers, 0.5, f"{t} in words") for t in ("One", "Two")]
    fig = plots.demo_figure(panels)
    bars = [ax for ax in fig.axes if ax.patches]
    assert len(bars) == 2
    assert sum(bool(ax.images) for ax in fig.axes) == 2 * 7
    labels = [text.get_text() for text in bars[0].texts]
    assert labels == ["90 ± 1", "80", "40 ± 5", "none given", "chance"]
    assert [text.get_text() for text in bars[0].get_legend().get_texts()] == ["seen", "reversed"]
    assert [strip._supxlabel.get_text() for strip in fig.subfigs] == ["One in words", "Two in words"]


def test_dollar_signs_in_names_are_not_formulas(tmp_path):
    name = r"$5 or $\frac"
    figures = [
        plots.confusion_matrix_figure(np.eye(2), [name, "b"], title=name),
        one_question([plots.ImageRow(name, squares(1), [name])], name, name),
    ]
    for i, fig in enumerate(figures):
        assert plots.save_figure(fig, tmp_path / f"{i}.png").stat().st_size > 1000


def test_save_makes_folders_and_a_picture_of_150_dots_per_inch(tmp_path):
    fig = one_question()
    path = plots.save_figure(fig, tmp_path / "new" / "folder" / "picture.PNG")
    with Image.open(path) as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        assert image.size == pytest.approx(tuple(150 * fig.get_size_inches()), rel=0.1)
    assert [p.name for p in path.parent.iterdir()] == ["picture.PNG"]
    assert plots.save_figure(fig, tmp_path / "picture.svg").read_text().lstrip().startswith("<?xml")


def test_a_failed_save_leaves_the_old_picture_and_nothing_else(tmp_path, monkeypatch):
    fig = one_question()
    path = plots.save_figure(fig, tmp_path / "picture.png")
    before = path.read_bytes()

    def full_disk(draft, **_):
        draft.write_bytes(b"half a pic")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fig, "savefig", full_disk)
    with pytest.raises(OSError, match="No space"):
        plots.save_figure(fig, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["picture", "picture.xyz"])
def test_an_unknown_format_is_explained(tmp_path, name):
    with pytest.raises(BayescalError, match=r"\.png"):
        plots.save_figure(one_question(), tmp_path / "folder" / name)
    assert not (tmp_path / "folder").exists()
