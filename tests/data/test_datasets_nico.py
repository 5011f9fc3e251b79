"""NICO is read through OoD-Bench's csv files, backslashes and all, wherever its images lie."""

import shutil

import numpy as np
import pytest

from bayescal.data.datasets import get_dataset, open_dataset
from bayescal.data.datasets.nico import Finder
from bayescal.errors import BayescalWarning, DataError
from layouts import NICO_FILES, PNG, make_nico

pytestmark = pytest.mark.filterwarnings("ignore:.*Is the copy complete:bayescal.errors.BayescalWarning")


@pytest.fixture
def nico(tmp_path):
    return make_nico(tmp_path / "NICO")


def test_csv_files_say_what_each_image_is_for(nico):
    dataset, manifest = open_dataset("nico", nico)
    assert len(manifest) == 19 * 4 * 4
    assert (manifest.classes, manifest.class_words) == (("animal", "vehicle"), ("animal", "vehicle"))
    assert manifest.environments == manifest.environment_words == ("beach", "forest", "grass", "snow")
    (fold,) = dataset.folds(manifest)
    for mask, numbers in ((fold.pool, {"0", "1"}), (fold.ood_val, {"2"}), (fold.test, {"3"})):
        found = {manifest.paths[row].rsplit("/", 1)[1].removesuffix(".jpg") for row in np.flatnonzero(mask)}
        assert found == numbers
    assert fold.test_val is fold.val is None
    assert fold.train_environments == (0, 1, 2, 3)


def test_class_and_context_come_from_the_csv_line(nico):
    _, manifest = open_dataset("nico", nico)
    for row in manifest.rows():
        parts = row.path.split("/")
        assert row.class_name == parts[-5]
        assert parts[-2].split("_")[1] == row.environment


@pytest.mark.parametrize("level", ["images", ""])
@pytest.mark.parametrize("blanks", [False, True])
@pytest.mark.parametrize("lists", ["mixed_split_corrected", ""])
def test_every_place_and_spelling_of_the_images_is_found(tmp_path, level, blanks, lists):
    make_nico(tmp_path / "NICO", level, blanks, lists)
    for path in (tmp_path / "NICO", tmp_path):
        assert len(get_dataset("nico").read(path)) == 304


def test_subclasses_are_the_classes_of_nico_sub(nico):
    dataset, manifest = open_dataset("nico-sub", nico)
    assert len(manifest.classes) == 19
    assert set(dataset.base_classes) | set(dataset.new_classes) == set(manifest.classes)
    assert dataset.folds(manifest)[0].ood_val.sum() == 76


def test_missing_images_are_counted_and_named_with_where_to_get_them(nico):
    shutil.rmtree(nico / "animal" / "images" / "bear")
    with pytest.raises(DataError) as refused:
        get_dataset("nico").read(nico)
    message = str(refused.value)
    assert "16 of 304 images are missing: animal/bear/on_snow/0.jpg" in message
    assert "https://nico.thumedialab.com" in message
    assert "mixed_split_corrected/" in message


def test_the_split_with_leaks_is_not_used(tmp_path):
    make_nico(tmp_path, lists="mixed_split")
    with pytest.raises(DataError, match="mixed_split has training images in its test part"):
        get_dataset("nico").read(tmp_path)


def test_an_image_in_two_parts_is_refused(nico):
    files = {name: nico / "mixed_split_corrected" / name for name in NICO_FILES}
    leaked = files["env_train1.csv"].read_text().splitlines()[0]
    files["env_test.csv"].write_text(files["env_test.csv"].read_text() + leaked + "\n")
    with pytest.raises(DataError, match=r"1 images are in two parts of the split: bear/on_snow/0\.jpg"):
        get_dataset("nico").read(nico)


@pytest.mark.parametrize("line", ["bear/on_snow/0.jpg,bear,animal", "bear\\at_home\\0.jpg,bear,at_home,animal"])
def test_lines_of_another_form_are_named(nico, line):
    file = nico / "mixed_split_corrected" / "env_val.csv"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(DataError, match=r"env_val\.csv, line 1: expected path,class,context,superclass"):
        get_dataset("nico").read(nico)


def test_a_csv_file_that_is_not_utf_8_is_named_with_the_line(nico):
    file = nico / "mixed_split_corrected" / "env_test.csv"
    file.write_bytes(b"bear\\on_snow\\caf\xe9.jpg,bear,on_snow,animal\n" + file.read_bytes())
    with pytest.raises(DataError, match=r"env_test\.csv: is not UTF-8 text \(line 1\)\. Download it again"):
        get_dataset("nico").read(nico)
    file.write_bytes("\ufeff".encode() + file.read_bytes().split(b"\n", 1)[1])  # a mark of UTF-8 is no letter
    assert len(get_dataset("nico").read(nico)) == 304


def test_the_list_that_prepare_writes_is_read_back(nico, tmp_path):
    dataset, manifest = open_dataset("nico", nico)
    manifest.to_csv(tmp_path / "nico.csv")
    again = dataset.read(tmp_path / "nico.csv")
    assert again == manifest
    assert dataset.folds(again)[0].ood_val.sum() == 76


@pytest.mark.filterwarnings("default:.*Is the copy complete:bayescal.errors.BayescalWarning")
def test_a_copy_of_another_size_is_noticed(nico):
    with pytest.warns(BayescalWarning, match="found 304 images, but NICO has 4,080"):
        get_dataset("nico").read(nico)


def test_folders_that_are_missing_are_no_error_of_the_finder(tmp_path):
    (tmp_path / "On Snow").mkdir()
    (tmp_path / "On Snow" / "1.jpg").write_bytes(PNG)
    assert Finder().find(tmp_path, "on_snow/1.jpg") == str(tmp_path / "On Snow" / "1.jpg")
    assert Finder().find(tmp_path, "on_snow/2.jpg") is None
    assert Finder().find(tmp_path / "nowhere", "on_snow", "1.jpg") is None
