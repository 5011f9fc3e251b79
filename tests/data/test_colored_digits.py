"""ColoredDigits is what its table says, and no digit is in two parts."""

import csv
import os
import shutil

import numpy as np
import pytest

from bayescal.data import colored_digits as maker
from bayescal.data.colored_digits import colored_digits_parts, make_colored_digits
from bayescal.data.images import content_hash, read_image
from bayescal.data.manifest import read_manifest
from bayescal.data.splits import few_shot_split
from bayescal.errors import DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("made") / "digits"
    make_colored_digits(place, seed=0)
    return place


@pytest.fixture(scope="module")
def manifest(folder):
    return make_colored_digits(folder, seed=0)


@pytest.fixture(scope="module")
def records(folder):
    with open(folder / "manifest.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def within_binomial_bounds(hits, rate):
    """Five standard deviations: a right implementation fails about once in two million."""
    return abs(np.mean(hits) - rate) < 5 * np.sqrt(rate * (1 - rate) / len(hits))


def test_the_parts_have_the_sizes_of_the_table(manifest):
    parts = colored_digits_parts(manifest)
    assert len(manifest) == 1797
    assert [len(rows) for rows in (parts.pool, parts.seen_test, parts.unseen_val, parts.unseen_test)] == [
        700,
        300,
        300,
        497,
    ]
    assert manifest.class_words == ("greater than four", "less than five")
    assert manifest.environment_words == ("mostly matching", "often matching", "reversed")
    assert np.bincount(manifest.environment_ids[parts.pool]).tolist() == [350, 350]


def test_every_digit_is_in_one_part_only(manifest):
    """By the grey content of the digit, so that a digit painted twice in two colours would be found."""
    parts = colored_digits_parts(manifest)
    contents = [
        {np.asarray(read_image(manifest.paths[row])).max(axis=2).tobytes() for row in rows}
        for rows in (parts.pool, parts.seen_test, parts.unseen_val, parts.unseen_test)
    ]
    assert sum(map(len, contents)) == len(set.union(*contents)) == 1797


def test_labels_colours_and_noise_follow_the_rule(records):
    for environment, flip in (("often_matching", 0.2), ("mostly_matching", 0.1), ("reversed", 0.9)):
        rows = [record for record in records if record["environment"] == environment]
        label = np.array([record["class"] == "greater_than_four" for record in rows])
        truth = np.array([int(record["digit"]) >= 5 for record in rows])
        colour = np.array([record["colour"] == "green" for record in rows])
        assert within_binomial_bounds(label != truth, 0.25)
        assert within_binomial_bounds(colour != label, flip)
        assert [int(r["label_flipped"]) for r in rows] == (label != truth).astype(int).tolist()
        assert [int(r["colour_flipped"]) for r in rows] == (colour != label).astype(int).tolist()


def test_the_pixels_have_the_colour_and_shape_that_the_table_says(folder, records):
    grey, digits = maker.grey_digits()
    for record in records[::50]:
        image = np.asarray(read_image(folder / record["path"]))
        assert image.shape == (64, 64, 3)
        index = int(record["path"].split("/")[-1][:-4])
        assert int(record["digit"]) == digits[index]
        channel = ("red", "green").index(record["colour"])
        assert np.array_equal(image[..., channel], grey[index])
        assert np.delete(image, channel, axis=2).sum() == 0


def test_the_tree_can_be_read_without_its_table(folder, manifest):
    tree = read_manifest(folder)
    assert sorted(tree.paths) == sorted(manifest.paths)
    assert (tree.classes, tree.environments) == (manifest.classes, manifest.environments)


def test_shots_can_be_drawn_from_the_pool(manifest):
    parts = colored_digits_parts(manifest)
    hashes = [content_hash(path) for path in manifest.paths]
    pool = np.isin(np.arange(len(manifest)), parts.pool)
    split = few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=[manifest.environments.index(name) for name in maker.TRAIN_ENVIRONMENTS],
        shots=16,
        val_shots=16,
        seed=1,
        hashes=hashes,
        forbidden={hashes[row] for row in parts.unseen_test},
        pool=pool,
    )
    assert len(split.train) == len(split.val) == 32
    assert pool[split.train].all()
    assert split.notes == ()


def test_making_it_again_reads_what_is_there(folder, manifest, monkeypatch):
    monkeypatch.setattr(maker, "_write", lambda *_: pytest.fail("written again"))
    assert make_colored_digits(folder, seed=0) == manifest


@pytest.fixture
def few_digits(monkeypatch):
    """Forty digits in place of 1,797, for tests that write."""
    grey, digits = maker.grey_digits()
    monkeypatch.setattr(maker, "grey_digits", lambda: (grey[:40], digits[:40]))
    monkeypatch.setattr(
        maker,
        "_PARTS",
        (("often_matching", "train", 16), ("reversed", "val", 12), ("reversed", "test", None)),
    )


@pytest.mark.usefixtures("few_digits")
def test_a_seed_repeats_and_another_differs(tmp_path):
    (tmp_path / "b").mkdir()  # an empty folder is as good as none
    contents = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        made = make_colored_digits(tmp_path / name, seed=seed)
        contents.append({os.path.relpath(path, tmp_path / name): content_hash(path) for path in made.paths})
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"], "something was left behind"


@pytest.mark.usefixtures("few_digits")
def test_other_folders_are_never_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="does not hold ColoredDigits"):
        make_colored_digits(tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="does not hold ColoredDigits"):
        make_colored_digits(tmp_path / "file")
    make_colored_digits(tmp_path / "digits", seed=0)
    with pytest.raises(DataError, match="seed 5"):
        make_colored_digits(tmp_path / "digits", seed=5)
    shutil.rmtree(tmp_path / "digits" / "reversed")
    with pytest.raises(DataError, match="is damaged"):
        make_colored_digits(tmp_path / "digits", seed=0)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.usefixtures("few_digits")
def test_nothing_half_written_is_left_behind(tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(maker.json, "dumps", full_disk)
    with pytest.raises(DataError, match="No space left"):
        make_colored_digits(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_digits")
def test_a_quicker_process_is_not_disturbed(tmp_path, monkeypatch):
    write = maker._write

    def write_while_another_finishes(folder, seed):
        write(folder, seed)
        write(tmp_path / "digits", seed)

    monkeypatch.setattr(maker, "_write", write_while_another_finishes)
    assert len(make_colored_digits(tmp_path / "digits")) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
