"""`bayescal evaluate`: the numbers against counting answers by hand, and what is written where."""

import json
from statistics import median

import pytest
from PIL import Image

from bayescal.estimator.predictor import Predictor
from command_line import make_shapes, run, write_csv

pytestmark = pytest.mark.xdist_group("command-line")


@pytest.fixture(scope="module")
def cautious(model, shapes, tmp_path_factory):
    """The model with a threshold at which it is unsure about half of the images."""
    predictor = Predictor.load(model)
    predictor.threshold = median(a["confidence"] for a in run("predict", model, shapes, "--json").json)
    folder = tmp_path_factory.mktemp("cautious") / "model"
    predictor.save(folder)
    return folder


@pytest.fixture(scope="module")
def report(cautious, shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation") / "report"
    result = run("evaluate", cautious, shapes, "-o", folder)
    assert result.code == 0, result.err
    return result, folder, json.loads((folder / "metrics.json").read_text())


def test_numbers_equal_those_counted_from_the_answers(cautious, shapes, report):
    _, _, metrics = report
    answers = run("predict", cautious, shapes, "--json").json
    threshold = json.loads((cautious / "config.json").read_text())["threshold"]
    assert metrics["threshold"] == threshold

    def truth(answer):
        return answer["image"].split("/")[-2]

    def accuracy(chosen):
        return sum(a["class"] == truth(a) for a in chosen) / len(chosen)

    sure = [a for a in answers if not a["unsure"]]
    wrong_and_unsure = [a for a in answers if a["unsure"] and a["class"] != truth(a)]
    assert 0 < len(sure) < 24
    right = sum(a["class"] == truth(a) for a in answers)
    assert metrics["images"] == len(answers) == 24
    assert metrics["accuracy"] == pytest.approx(accuracy(answers))
    assert metrics["coverage"] == pytest.approx(len(sure) / 24)
    assert metrics["selective_accuracy"] == pytest.approx(accuracy(sure))
    assert metrics["selective_accuracy_code"] == pytest.approx(right / (24 - len(wrong_and_unsure)))
    for group in metrics["environments"]:
        mine = [a for a in answers if a["image"].split("/")[-3] == group["name"]]
        assert group["images"] == 12
        assert group["accuracy"] == pytest.approx(accuracy(mine))
    worst = min(metrics["environments"], key=lambda group: group["accuracy"])
    assert (metrics["worst_environment"], metrics["worst_environment_name"]) == (worst["accuracy"], worst["name"])
    for group in metrics["classes"]:
        assert group["accuracy"] == pytest.approx(accuracy([a for a in answers if truth(a) == group["name"]]))
    names, counts = metrics["confusion_matrix"]["classes"], metrics["confusion_matrix"]["counts"]
    assert names == ["dog", "house"]
    for i, true in enumerate(names):
        for j, said in enumerate(names):
            assert counts[i][j] == sum(truth(a) == true and a["class"] == said for a in answers)
    squares = [sum((p - (name == truth(a))) ** 2 for name, p in a["probabilities"].items()) for a in answers]
    assert metrics["brier"] == pytest.approx(sum(squares) / 24, abs=1e-6)


def test_the_folder_holds_the_numbers_and_a_picture(report):
    result, folder, metrics = report
    assert sorted(p.name for p in folder.iterdir()) == ["confusion-matrix.png", "metrics.json"]
    assert min(Image.open(folder / "confusion-matrix.png").size) > 300
    assert sorted(p.name for p in folder.parent.iterdir()) == ["report"]
    assert f"{100 * metrics['accuracy']:.1f} %" in result.out
    assert "may be the ones that the model learned from" in result.err


def test_unseen_environments_are_marked(model, tmp_path):
    data = make_shapes(tmp_path / "data", environments=("photo", "cartoon"), n=2)
    result = run("evaluate", model, data, "-o", tmp_path / "report")
    assert result.code == 0, result.err
    metrics = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert {group["name"]: group["seen"] for group in metrics["environments"]} == {"photo": True, "cartoon": False}
    assert "unseen" in result.out

    only = run("evaluate", model, data, "--only", "cartoon", "-o", tmp_path / "report", "--force", "--json")
    assert only.code == 0
    assert only.err == ""
    assert [group["name"] for group in only.json["environments"]] == ["cartoon"]
    assert only.json == json.loads((tmp_path / "report" / "metrics.json").read_text())
    out = run("evaluate", model, data, "--leave-out", "cartoon", "-o", tmp_path / "other", "--json")
    assert [group["name"] for group in out.json["environments"]] == ["photo"]


def test_the_default_place_is_beside_the_model_and_is_not_replaced_unasked(model, shapes, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert run("evaluate", copy, shapes).code == 0
    path = tmp_path / "model-evaluation"
    assert (path / "metrics.json").is_file()
    again = run("evaluate", copy, shapes)
    assert again.code == 2
    assert "model-evaluation exists already" in again.err
    assert "--force" in again.err
    assert run("evaluate", copy, shapes, "--force").code == 0
    (path / "thesis.tex").write_text("precious")
    refused = run("evaluate", copy, shapes, "--force")
    assert refused.code == 2
    assert "thesis.tex" in refused.err
    assert (path / "thesis.tex").is_file()


def test_the_test_part_is_the_default_where_there_is_one(model, shapes, tmp_path):
    rows = [
        (p, p.parent.name, p.parts[-3], "test" if p.stem == "0" else "train") for p in sorted(shapes.rglob("*.png"))
    ]
    manifest = write_csv(tmp_path / "images.csv", rows)
    for arguments, images in (([], 4), (["--split", "train"], 20), (["--split", "all"], 24)):
        result = run("evaluate", model, manifest, "--json", "--force", "-o", tmp_path / "report", *arguments)
        assert result.code == 0, result.err
        assert result.json["images"] == images
    assert run("evaluate", model, manifest, "--split", "val", "-o", tmp_path / "x").code == 2
    wrong = run("evaluate", model, manifest, "--split", "tset", "-o", tmp_path / "x")
    assert wrong.code == 2
    assert "tset" in wrong.err
    assert not (tmp_path / "x").exists()


def test_classes_that_the_model_does_not_know_are_listed(model, tmp_path):
    data = make_shapes(tmp_path / "data", classes=("dog", "horse", "guitar"), n=1)
    result = run("evaluate", model, data, "-o", tmp_path / "report")
    assert result.code == 2
    assert "does not know 2 of the 3 classes in the data: guitar, horse" in result.err
    assert "It knows: dog, house" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_class_without_images_is_no_problem(model, tmp_path):
    data = make_shapes(tmp_path / "data", classes=("dog",), n=2)
    result = run("evaluate", model, data, "-o", tmp_path / "report", "--json")
    assert result.code == 0, result.err
    assert [group["name"] for group in result.json["classes"]] == ["dog"]


def test_unreadable_images_are_counted_and_listed(model, tmp_path):
    data = make_shapes(tmp_path / "data", n=2)
    (data / "photo" / "dog" / "0.png").write_bytes(b"")
    result = run("evaluate", model, data, "-o", tmp_path / "report", "--json")
    assert result.code == 0
    assert result.json["images"] == 7
    assert [entry["image"] for entry in result.json["unreadable"]] == [str(data / "photo" / "dog" / "0.png")]
    assert "1 of 8 images could not be read" in result.err
    for image in data.rglob("*.png"):
        image.write_bytes(b"")
    none = run("evaluate", model, data, "-o", tmp_path / "report2")
    assert none.code == 2
    assert not (tmp_path / "report2").exists()


@pytest.mark.parametrize("option", ["--only", "--leave-out"])
def test_an_unknown_environment_is_answered_with_the_nearest(model, shapes, tmp_path, option):
    result = run("evaluate", model, shapes, option, "foto", "-o", tmp_path / "report")
    assert result.code == 2
    assert f"{option}: there is no environment 'foto'; did you mean 'photo'?" in result.err


def test_nothing_left_is_an_error(model, shapes, tmp_path):
    result = run("evaluate", model, shapes, "--only", "photo", "--leave-out", "photo", "-o", tmp_path / "report")
    assert result.code == 2
    assert "leave no environment" in result.err
