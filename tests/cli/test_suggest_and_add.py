"""`bayescal suggest` and `bayescal add`: what to label next, and teaching it."""

import csv
import shutil

import pytest
from PIL import Image

from bayescal import FewShotClassifier
from command_line import make_shapes, run, write_csv

pytestmark = pytest.mark.xdist_group("command-line")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A quick model of images of its own."""
    folder = tmp_path_factory.mktemp("suggest")
    make_shapes(folder / "data")
    result = run("fit", folder / "data", "-o", folder / "model", "--method", "logistic-regression", "--quiet")
    assert result.code == 0, result.err
    return folder


def test_suggestions_are_new_images_an_unseen_environment_first(own, tmp_path):
    data = shutil.copytree(own / "data", tmp_path / "data")
    make_shapes(tmp_path / "new", environments=("cartoon",), n=3)
    shutil.move(tmp_path / "new" / "cartoon", data / "cartoon")
    extra = data / "photo" / "dog" / "extra.png"
    Image.new("RGB", (32, 32), (0, 90, 200)).save(extra)
    result = run("suggest", own / "model", data, "-n", 7, "-o", tmp_path / "a.csv", "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["environment"] for row in rows] == ["cartoon"] * 6 + ["photo"]
    assert rows[6]["path"] == str(extra)
    assert {row["class"] for row in rows} == {""}
    assert "24 of 31 images were left out" in result.err
    assert (tmp_path / "a.html").read_text().count("data:image/jpeg") == 7
    refused = run("suggest", own / "model", data, "-o", tmp_path / "a.pdf")
    assert refused.code == 2
    assert ".csv, .png, .html" in refused.err
    nothing = run("suggest", own / "model", own / "data")
    assert nothing.code == 2
    assert "nothing is left to label" in nothing.err


def test_what_was_suggested_is_filled_in_and_added_although_the_old_images_are_gone(own, tmp_path):
    shutil.copytree(own / "model", tmp_path / "model")
    new = make_shapes(tmp_path / "new", environments=("cartoon",), n=3)
    table = tmp_path / "to-label.csv"
    assert run("suggest", tmp_path / "model", new, "-n", 4, "-o", table).code == 0
    rows = [(row["path"], row["path"].split("/")[-2], "cartoon", "") for row in csv.DictReader(table.open())]
    write_csv(table, rows)
    result = run("add", tmp_path / "model", table, "-o", tmp_path / "model2")
    assert result.code == 0, result.err
    assert "Added 4 images; 1 new environment: cartoon." in result.out
    assert "right before" in result.out
    assert FewShotClassifier.load(tmp_path / "model2").environments_.tolist() == ["cartoon", "photo", "sketch"]
    again = run("add", tmp_path / "model2", table, "-o", tmp_path / "model3")
    assert again.code == 2
    assert "nothing to add" in again.err
    assert not (tmp_path / "model3").exists()


def test_a_folder_of_classes_can_be_said_to_come_from_somewhere(own, tmp_path):
    new = make_shapes(tmp_path / "new", environments=("cartoon",), n=2) / "cartoon"
    result = run("add", own / "model", new, "-o", tmp_path / "model2", "--environment", "street", "--no-compare")
    assert result.code == 0, result.err
    assert "new environment: street" in result.out
    assert "right before" not in result.out
    unsaid = run("add", own / "model", new, "-o", tmp_path / "model3", "--no-compare")
    assert "come without an environment" in " ".join(unsaid.err.split())
    taken = run("add", own / "model", new, "-o", tmp_path / "model2", "--environment", "street")
    assert taken.code == 2
    assert "exists already" in taken.err


def test_an_environment_is_filled_in_where_a_list_has_none(own, tmp_path):
    new = make_shapes(tmp_path / "new", environments=("cartoon",), n=2)
    paths = sorted(new.rglob("*.png"))
    rows = [(str(path), path.parent.name, "photo" if i == 0 else "", "") for i, path in enumerate(paths)]
    table = write_csv(tmp_path / "to-label.csv", rows)
    refused = run("add", own / "model", table, "-o", tmp_path / "model2", "--no-compare")
    assert refused.code == 2
    assert "the environment is empty" in " ".join(refused.err.split())
    result = run("add", own / "model", table, "-o", tmp_path / "model2", "--environment", "street", "--no-compare")
    assert result.code == 0, result.err
    taught = FewShotClassifier.load(tmp_path / "model2")
    learned_from = taught.environments_[taught.predictor_.training.environment_ids].tolist()
    assert learned_from.count("street") == len(paths) - 1
    assert "new environment: street" in result.out
    said = run("add", own / "model", new, "-o", tmp_path / "model3", "--environment", "street", "--no-compare")
    assert said.code == 0, said.err
    assert "new environment: cartoon" in said.out
    assert "--environment street says nothing" in " ".join(said.err.split())
