"""A manifest holds the same facts whichever way it was read, and its operations keep them."""

import json
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescal.data.manifest import Manifest, read_manifest
from bayescal.errors import BayescalWarning, DataError

# Names as people write them; those that fail on purpose have tests of their own.
WORD = st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=6)
NAME = st.lists(WORD, min_size=1, max_size=3).flatmap(
    lambda words: st.sampled_from(["_", " ", "-", ", ", '"', ";"]).map(lambda sep: sep.join(words))
)
NAMES = st.lists(NAME, min_size=1, max_size=3, unique_by=lambda name: "".join(filter(str.isalpha, name)))
FILE = st.text(alphabet="abcé ,;\"'01_\\", min_size=1, max_size=8).map(lambda name: f"x{name}x.png")


def write_tree(folder, cells):
    for environment, class_name, file in cells:
        path = Path(folder, environment, class_name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@st.composite
def trees(draw):
    environments, classes = draw(NAMES), draw(NAMES)
    cell = st.tuples(st.sampled_from(environments), st.sampled_from(classes), FILE)
    return draw(st.lists(cell, min_size=1, max_size=8, unique=True))


@settings(max_examples=60, deadline=None)
@given(trees(), st.sampled_from(",;\t"), st.booleans(), st.data())
def test_folder_csv_and_json_give_the_same_manifest(cells, delimiter, with_mark, data):
    with tempfile.TemporaryDirectory() as folder:
        write_tree(folder, cells)
        from_folder = read_manifest(folder, layout="environment/class")
        assert len(from_folder) == len(cells)
        by_path = {os.path.join(folder, e, c, f): (e, c) for e, c, f in cells}
        for row in from_folder.rows():
            assert by_path[row.path] == (row.environment, row.class_name)

        # a table with its columns in another order, one more column, and any separator
        columns = data.draw(st.permutations(["path", "class", "environment", "note"]))
        records = [
            {
                "path": os.path.relpath(row.path, folder),
                "class": row.class_name,
                "environment": row.environment,
                "note": "x",
            }
            for row in from_folder.rows()
        ]
        table = Path(folder, "table.csv")
        lines = [columns, *[[record[name] for name in columns] for record in records]]
        quoted = [delimiter.join('"' + cell.replace('"', '""') + '"' for cell in line) for line in lines]
        table.write_text("\r\n".join(quoted), encoding="utf-8-sig" if with_mark else "utf-8")
        assert read_manifest(table) == from_folder

        listing = Path(folder, "list.json")
        listing.write_text(json.dumps(records), encoding="utf-8")
        assert read_manifest(listing) == from_folder
        listing.write_text(json.dumps({"images": records}, ensure_ascii=False), encoding="utf-8")
        assert read_manifest(listing) == from_folder

        for path in (Path(folder, "own.csv"), Path(folder, "elsewhere", "own.csv")):
            path.parent.mkdir(exist_ok=True)
            from_folder.to_csv(path)
            assert read_manifest(path) == from_folder


@pytest.fixture
def animals(tmp_path):
    write_tree(
        tmp_path / "animals",
        [
            ("photo", "dog", "1.jpg"),
            ("photo", "dog", "2.jpg"),
            ("photo", "guide_dog", "3.jpg"),
            ("art_painting", "dog", "4.jpg"),
        ],
    )
    return read_manifest(tmp_path / "animals")


def test_names_are_sorted_and_shown_as_words(animals):
    assert animals.classes == ("dog", "guide_dog")
    assert animals.class_words == ("dog", "guide dog")
    assert animals.environments == ("art_painting", "photo")
    assert animals.environment_words == ("art painting", "photo")
    assert animals.class_ids.tolist() == [0, 0, 0, 1]
    assert animals.environment_ids.tolist() == [0, 1, 1, 1]
    assert animals.class_ids.dtype == np.int64


def test_counts_and_missing_cells(animals):
    assert animals.summary() == {
        "dog": {"art_painting": 1, "photo": 2},
        "guide_dog": {"art_painting": 0, "photo": 1},
    }
    assert animals.missing_cells() == [("guide_dog", "art_painting")]
    # an environment that was left out on purpose is not a hole, a class without any image is one
    assert animals.select(animals.environment_ids == 1).missing_cells() == []
    assert animals.select([0, 1]).missing_cells() == [("guide_dog", "art_painting"), ("guide_dog", "photo")]


def test_select_keeps_the_tables(animals):
    by_mask, by_index = animals.select(animals.class_ids == 1), animals.select([3])
    assert by_mask == by_index
    assert by_mask.classes == animals.classes
    assert by_mask.class_ids.tolist() == [1]
    assert [row.class_name for row in by_mask.rows()] == ["guide_dog"]
    assert len(animals.select([])) == 0
    assert animals.select([2, 0]).paths == (animals.paths[2], animals.paths[0])
    with pytest.raises(DataError, match="mask for 4 images"):
        animals.select([True, False])


def test_words_can_be_given(animals, tmp_path):
    changed = animals.with_words(classes={"guide_dog": "assistance dog"}, environments={"photo": "photograph"})
    assert changed.class_words == ("dog", "assistance dog")
    assert changed.environment_words == ("art painting", "photograph")
    assert changed.with_words(classes={"dog": "hound"}).class_words == ("hound", "assistance dog")
    assert read_manifest(tmp_path / "animals", class_words={"dog": "hound"}).class_words[0] == "hound"
    with pytest.raises(DataError, match="Did you mean 'photo'"):
        animals.with_words(environments={"fotos": "photo"})


def test_words_in_a_file_give_way_to_words_in_the_call(tmp_path):
    (tmp_path / "1.png").touch()
    listing = tmp_path / "list.json"
    images = [{"path": "1.png", "class": "a", "environment": "e"}]
    listing.write_text(json.dumps({"images": images, "class_words": {"a": "ant"}, "environment_words": {"e": "earth"}}))
    found = read_manifest(listing)
    assert (found.class_words, found.environment_words) == (("ant",), ("earth",))
    assert read_manifest(listing, class_words={"a": "ape"}).class_words == ("ape",)


def test_splits_are_read(tmp_path):
    for name in "1234":
        (tmp_path / f"{name}.png").touch()
    table = tmp_path / "table.csv"
    table.write_text("path,class,split\n1.png,a,train\n2.png,a,Val\n3.png,a,test\n4.png,a,\n")
    found = read_manifest(table)
    assert found.splits.tolist() == ["train", "val", "test", ""]
    assert found.environments == ("all",)
    found.to_csv(tmp_path / "again.csv")
    assert read_manifest(tmp_path / "again.csv") == found


def test_a_moved_dataset_with_its_csv_can_be_read(animals, tmp_path):
    animals.to_csv(tmp_path / "animals" / "manifest.csv")
    (tmp_path / "animals").rename(tmp_path / "moved")
    assert read_manifest(tmp_path / "moved" / "manifest.csv").class_ids.tolist() == animals.class_ids.tolist()


def test_a_csv_is_written_whole_or_not_at_all(animals, tmp_path, monkeypatch):
    target = tmp_path / "out.csv"
    target.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(DataError, match=r"out\.csv.*No space left"):
        animals.to_csv(target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["animals", "out.csv"]


def test_columns_cannot_be_changed_by_accident(animals):
    with pytest.raises(ValueError, match="read-only"):
        animals.class_ids[0] = 1


def test_columns_must_fit_together():
    def build(**changes):
        whole = {
            "paths": ("a",),
            "class_ids": [0],
            "environment_ids": [0],
            "splits": ["train"],
            "classes": ("c",),
            "environments": ("e",),
            "class_words": ("c",),
            "environment_words": ("e",),
        }
        return Manifest(**(whole | changes))

    build()
    with pytest.raises(DataError, match="unknown split 'training'"):
        build(splits=["training"])
    with pytest.raises(DataError, match="class_ids has shape"):
        build(class_ids=[0, 0])
    with pytest.raises(DataError, match="do not fit"):
        build(environment_ids=[1])


def test_repeated_rows(tmp_path):
    (tmp_path / "1.png").touch()
    (tmp_path / "2.png").touch()
    table = tmp_path / "table.csv"
    table.write_text("path,class\n1.png,a\n./1.png,a\n2.png,b\n")
    with pytest.warns(BayescalWarning, match="1 images were listed more than once"):
        assert len(read_manifest(table)) == 2
    table.write_text("path,class\n1.png,a\n2.png,b\n1.png,b\n")
    with pytest.raises(DataError, match=r"1\.png is listed twice.*a / all \(line 2\) and b / all \(line 4\)"):
        read_manifest(table)


def test_class_names_are_checked(tmp_path):
    write_tree(tmp_path, [("photo", "Dog", "1.jpg"), ("sketch", "dog", "2.jpg")])
    with pytest.raises(DataError, match="'Dog' and 'dog'"):
        read_manifest(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_manifest(tmp_path, class_words={"Dog": "big dog"})) == 2


def test_images_that_come_without_an_environment_are_from_the_one_that_is_given(tmp_path):
    for name in ("dog/1.png", "cat/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        (tmp_path / "photos" / name).write_bytes(b"")
    assert read_manifest(tmp_path / "photos", environment="garden").environments == ("garden",)
    table = tmp_path / "list.csv"
    table.write_text("path,class,environment\nphotos/dog/1.png,dog,street\nphotos/cat/2.png,cat,\n")
    found = read_manifest(table, environment="garden")
    assert [found.environments[i] for i in found.environment_ids] == ["street", "garden"]
    with pytest.raises(DataError, match="line 3: the environment is empty"):
        read_manifest(table)
