"""Drawn data sets: families with variation, styles that differ, paint that goes with the class or against it."""

import csv
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bayescal.data import make_lying_cue, make_new_place
from bayescal.data.synthetic import lying_cue, new_place
from bayescal.data.synthetic.strokes import FAMILIES, THINGS, draw_strokes
from bayescal.data.synthetic.styles import SIZE, STYLES, coverage, render
from bayescal.errors import DataError


@pytest.mark.parametrize("name", [*FAMILIES, *THINGS])
def test_members_of_a_family_differ_and_stay_in_the_picture(name):
    random = np.random.default_rng(0)
    drawn = [draw_strokes(name, random) for _ in range(30)]
    points = np.concatenate([stroke for strokes in drawn for stroke in strokes])
    assert np.isfinite(points).all()
    assert np.mean(np.abs(points).max(1) < 1) > 0.97
    shapes = {tuple(stroke.shape for stroke in strokes) for strokes in drawn}
    assert len(shapes) > 1 or name in ("zelk", "quab", "fish")  # others also differ in the number of their parts
    covers = [coverage(strokes, 5.0) for strokes in drawn[:4]]
    assert all(0.01 < cover.mean() < 0.4 for cover in covers)
    assert all(np.abs(a - b).mean() > 0.01 for a, b in pairwise(covers))


@pytest.mark.parametrize("style", STYLES)
def test_a_style_draws_the_line_and_not_the_same_twice(style):
    random = np.random.default_rng(1)
    strokes = draw_strokes("quab", random)
    line = coverage(strokes, 4.0) > 0.9
    pictures = [render(strokes, style, random) for _ in range(2)]
    assert all(picture.shape == (SIZE, SIZE, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert (pictures[0] != pictures[1]).mean() > 0.5
    ground = coverage(strokes, 16.0) == 0
    for picture in pictures:
        apart = np.abs(picture[line].mean(0) - picture[ground].mean(0)).max()
        assert apart > 12, style


def test_a_given_colour_is_that_of_the_line():
    random = np.random.default_rng(2)
    strokes = draw_strokes("fish", random)
    line = coverage(strokes, 4.0) > 0.9
    blue, yellow = (
        np.mean(
            [render(strokes, "stencil_on_brick", random, lying_cue.PAINTS[name])[line].mean(0) for _ in range(5)], 0
        )
        for name in ("blue", "yellow")
    )
    assert blue[2] > blue[0]
    assert yellow[0] > yellow[2]


def test_a_new_place_is_what_its_table_says(tmp_path):
    manifest = make_new_place(tmp_path / "place", pool=2, test=1)
    cells = Counter(
        (manifest.environments[e], split) for e, split in zip(manifest.environment_ids, manifest.splits, strict=True)
    )
    expected = {(style, "train"): 2 * len(FAMILIES) for style in new_place.LEARNED}
    assert cells == expected | {("stencil_on_brick", "test"): len(FAMILIES)}
    assert set(manifest.classes) == set(FAMILIES)
    again = make_new_place(tmp_path / "again", pool=2, test=1)
    pairs = list(zip(manifest.paths, again.paths, strict=True))
    assert all(Path(a).read_bytes() == Path(b).read_bytes() for a, b in pairs)
    with pytest.raises(DataError, match="holds other A new place"):
        make_new_place(tmp_path / "place", pool=3, test=1)
    with pytest.raises(DataError, match="expected stencil_on_brick or embroidery"):
        make_new_place(tmp_path / "other", held_out="neon")


@pytest.mark.parametrize("swapped", [False, True])
def test_paint_goes_with_the_class_and_then_against_it(tmp_path, monkeypatch, swapped):
    monkeypatch.setattr(lying_cue, "PARTS", (("second_wall", "train", 4, 1), ("third_wall", "test", 5, 4)))
    folder = tmp_path / "walls"
    manifest = make_lying_cue(folder, swapped)
    with open(folder / "manifest.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = {"fish": "yellow", "key": "blue"} if not swapped else {"fish": "blue", "key": "yellow"}
    agrees = Counter((row["environment"], row["class"], row["paint"] == own[row["class"]]) for row in rows)
    for name in own:
        assert (agrees["second_wall", name, True], agrees["second_wall", name, False]) == (3, 1)
        assert (agrees["third_wall", name, True], agrees["third_wall", name, False]) == (1, 4)
    assert len(manifest) == len(rows) == 18
