"""Made data sets are read by their table, with parts that share no image, and words instead of folder names."""

import json

import numpy as np
import pytest

from bayescal.data.datasets import get_dataset, open_dataset
from bayescal.errors import DataError
from layouts import PNG

PARTS = (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test"))


def write_made(folder, classes, splits=PARTS):
    """Two images per class and part, and the table that a maker writes."""
    lines = ["path,class,environment,split,colour,label_flipped,colour_flipped"]
    for environment, split in splits:
        for name in classes:
            for number in range(2):
                path = f"{environment}/{name}/{split}{number}.png"
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(PNG)
                lines.append(f"{path},{name},{environment},{split},red,0,0")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("name", "classes", "words"),
    [
        ("ccd", ("cat", "dog"), ("cat", "dog")),
        ("colored-mnist", ("greater_than_four", "less_than_five"), ("greater than four", "less than five")),
    ],
)
def test_a_made_folder_is_read_by_its_table(tmp_path, name, classes, words):
    write_made(tmp_path, classes)
    dataset, manifest = open_dataset(name, tmp_path)
    assert manifest.class_words == words
    assert manifest.environment_words == ("test environment", "first environment", "second environment")
    assert dataset.read(tmp_path / "manifest.csv") == manifest
    (fold,) = dataset.folds(manifest)
    assert [manifest.environments[e] for e in fold.train_environments] == ["train_1", "train_2"]
    for mask, split, n in ((fold.pool, "train", 8), (fold.test_val, "val", 4), (fold.test, "test", 4)):
        assert np.array_equal(mask, manifest.splits == split)
        assert mask.sum() == n
    assert fold.ood_val is fold.val is None
    manifest.to_csv(tmp_path / "copy.csv")
    assert dataset.read(tmp_path / "copy.csv") == manifest


@pytest.mark.parametrize(("name", "command"), [("ccd", "make-ccd"), ("colored-mnist", "make-coloredmnist")])
def test_an_empty_place_is_answered_with_the_command_that_makes_it(tmp_path, name, command):
    with pytest.raises(DataError, match=f"(?s)there is no manifest.csv in it.*bayescal data {command}"):
        get_dataset(name).read(tmp_path)


def test_a_table_without_a_validation_part_is_refused(tmp_path):
    write_made(tmp_path, ("cat", "dog"), [part for part in PARTS if part[1] != "val"])
    with pytest.raises(DataError, match="no image has the split val"):
        get_dataset("ccd").read(tmp_path)


@pytest.fixture
def released(tmp_path):
    """The layout that the code of Zhu et al. reads: a JSON file with three lists of [path, number, class]."""
    lists = {"train": [], "val": [], "test": []}
    for folder, split in (("train_1", "train"), ("train_2", "train"), ("val", "val"), ("test", "test")):
        for number, animal in enumerate(("cat", "dog")):
            path = f"{folder}/{animal}s/{animal}.1.jpg"
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_bytes(PNG)
            lists[split].append([path, number, animal])
    (tmp_path / "ColoredCatsDogs.json").write_text(json.dumps(lists))
    return tmp_path


def test_the_released_cats_and_dogs_are_read(released):
    dataset, manifest = open_dataset("ccd", released)
    assert manifest.summary() == {name: {"test": 2, "train_1": 1, "train_2": 1} for name in ("cat", "dog")}
    (fold,) = dataset.folds(manifest)
    assert (fold.pool.sum(), fold.test_val.sum(), fold.test.sum()) == (4, 2, 2)


def test_released_images_may_lie_in_a_folder_of_their_own_and_must_be_there(released):
    (released / "images").mkdir()
    (released / "train_1").rename(released / "images" / "train_1")
    assert len(get_dataset("ccd").read(released)) == 8
    (released / "val" / "dogs" / "dog.1.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 8 images are missing: val/dogs/dog\.1\.jpg"):
        get_dataset("ccd").read(released)
    (released / "ColoredCatsDogs.json").write_text("{}")
    with pytest.raises(DataError, match=r"ColoredCatsDogs\.json cannot be read"):
        get_dataset("ccd").read(released)
