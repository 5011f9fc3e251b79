"""`bayescal evaluate`: the numbers against counting answers by hand, and what is written where."""

import csv
import json
import re
from statistics import median

import pytest
from PIL import Image

from bayescal.cli.evaluate import _is_inside
from bayescal.estimator.predictor import Predictor
from command_line import make_shapes, run, shape, write_csv

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
    assert sorted(p.name for p in folder.iterdir()) == ["confusion-matrix.png", "metrics.json", "mistakes.csv"]
    assert min(Image.open(folder / "confusion-matrix.png").size) > 300
    assert sorted(p.name for p in folder.parent.iterdir()) == ["report"]
    assert f"{100 * metrics['accuracy']:.1f} %" in result.out


def test_images_that_the_model_was_made_from_are_named_by_content(model, tmp_path):
    """24 images that it has seen, under other names and beside 4 that it has not."""
    data = make_shapes(tmp_path / "data")
    for path in sorted(data.rglob("*.png")):
        path.rename(path.with_stem(f"renamed-{path.stem}"))
    for environment in ("photo", "sketch"):
        for name in ("dog", "house"):
            shape(name, environment, 77).save(data / environment / name / "new.png")
    result = run("evaluate", model, data, "-o", tmp_path / "report", "--json")
    assert result.code == 0, result.err
    assert result.json["learned_from"] == 24
    others = result.json["without_learned_from"]
    assert others["images"] == 4
    said = "made from 24 of these 28 images (known by content), which says little of others; without them, accuracy is "
    assert f"{said}{100 * others['accuracy']:.1f} % of 4" in " ".join(result.err.split())


@pytest.fixture(scope="module")
def mislabelled(shapes, tmp_path_factory):
    """The same images; every third has the other class's label, so that there are mistakes."""
    other = {"dog": "house", "house": "dog"}
    rows = [
        (p, p.parent.name if i % 3 else other[p.parent.name], p.parts[-3], "")
        for i, p in enumerate(sorted(shapes.rglob("*.png")))
    ]
    return write_csv(tmp_path_factory.mktemp("mislabelled") / "images.csv", rows)


def test_mistakes_are_listed_with_their_paths_the_most_confident_first(model, mislabelled, shapes, tmp_path):
    metrics = run("evaluate", model, mislabelled, "-o", tmp_path / "report", "--json").json
    answers = {a["image"]: a for a in run("predict", model, shapes, "--json").json}
    truth = {row["path"]: row["class"] for row in csv.DictReader(mislabelled.open())}
    wrong = [image for image, a in answers.items() if a["class"] != truth[image]]
    assert 1 < len(wrong) < 24
    assert sorted(row["image"] for row in metrics["mistakes"]) == sorted(wrong)
    confidences = [row["confidence"] for row in metrics["mistakes"]]
    assert confidences == sorted(confidences, reverse=True)
    rows = list(csv.DictReader((tmp_path / "report" / "mistakes.csv").open()))
    assert [row["path"] for row in rows] == [row["image"] for row in metrics["mistakes"]]
    for row in rows:
        assert (row["said"], row["class"]) == (answers[row["path"]]["class"], truth[row["path"]])


def test_pictures_are_a_page_in_itself_and_a_sheet(cautious, mislabelled, shapes, tmp_path):
    folder = tmp_path / "report"
    result = run("evaluate", cautious, mislabelled, "-o", folder, "--pictures")
    assert result.code == 0, result.err
    page, metrics = (folder / "pictures.html").read_text(), json.loads((folder / "metrics.json").read_text())
    assert len(metrics["mistakes"]) > 1
    assert page.count('<article class="card"') == 24, "mistakes and right answers"
    assert page.count('<figure title="') >= 3 * 24, "three training images beside each"
    assert "gone" not in page.partition("<body>")[2]
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    for anchor in re.findall(r'<td[^>]*><a href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page
    counts = [int(n) for n in re.findall(r'<a href="#cell[^>]*>(\d+)</a>', page)]
    assert sorted(counts) == sorted(n for row in metrics["confusion_matrix"]["counts"] for n in row if n)
    assert Image.open(folder / "mistakes.png").size[1] > 200

    again = run("evaluate", cautious, shapes, "-o", folder)
    assert again.code == 0
    assert sorted(p.name for p in folder.iterdir()) == ["confusion-matrix.png", "metrics.json", "mistakes.csv"], (
        "pictures of an earlier evaluation do not stay beside newer numbers"
    )


def test_the_page_shows_what_names_hold_as_text_and_a_training_image_only_while_it_is_the_same(tmp_path):
    name = "<img src=x onerror=alert(1)>"
    data = make_shapes(tmp_path / "data", n=3)
    (data / "photo" / "dog").rename(data / "photo" / name)
    (data / "sketch" / "dog").rename(data / "sketch" / name)
    fitted = run("fit", data, "-o", tmp_path / "model", "--method", "logistic-regression", "--quiet")
    assert fitted.code == 0, fitted.err
    for path in data.rglob("*.png"):
        if path.parts[-3] == "photo":
            Image.new("RGB", (8, 8)).save(path)  # another image by now
    assert run("evaluate", tmp_path / "model", data, "--pictures", "-o", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "pictures.html").read_text()
    assert name not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "file gone<br>or changed" in page


def test_unseen_environments_are_marked(model, tmp_path):
    data = make_shapes(tmp_path / "data", environments=("photo", "cartoon"), n=2)
    result = run("evaluate", model, data, "-o", tmp_path / "report")
    assert result.code == 0, result.err
    metrics = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert {group["name"]: group["seen"] for group in metrics["environments"]} == {"photo": True, "cartoon": False}
    assert "unseen" in result.out

    only = run("evaluate", model, data, "--only", "cartoon", "-o", tmp_path / "report", "--json")
    assert only.code == 0
    assert [group["name"] for group in only.json["environments"]] == ["cartoon"]
    assert only.json == json.loads((tmp_path / "report" / "metrics.json").read_text())
    out = run("evaluate", model, data, "--leave-out", "cartoon", "-o", tmp_path / "other", "--json")
    assert [group["name"] for group in out.json["environments"]] == ["photo"]


@pytest.mark.parametrize(
    ("found", "low", "high", "inside"),
    [
        (1.0, 0.48, 0.9968, True),  # printed as 100.0 % and 48%–100%
        (0.9960, 0.48, 0.9940, False),  # 99.6 % and 48%–99%
        (0.4796, 0.4841, 0.9, True),  # 48.0 % and 48%–90%
        (0.474, 0.48, 0.9, False),
    ],
)
def test_what_was_found_is_inside_of_the_interval_as_it_is_printed(found, low, high, inside):
    assert _is_inside(found, low, high) == inside


def test_the_default_place_is_beside_the_model_and_results_are_replaced_but_nothing_else(model, shapes, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert run("evaluate", copy, shapes).code == 0
    path = tmp_path / "model-evaluation"
    before = json.loads((path / "metrics.json").read_text())
    (path / "thesis.tex").write_text("precious")
    again = run("evaluate", copy, shapes, "--only", "photo")
    assert again.code == 0, again.err
    assert json.loads((path / "metrics.json").read_text())["images"] == before["images"] / 2
    assert (path / "thesis.tex").read_text() == "precious"
    (path / "metrics.json").write_text('{"mine": 1}')
    refused = run("evaluate", copy, shapes)
    assert refused.code == 2
    assert "metrics.json that `bayescal evaluate` did not write" in " ".join(refused.err.split())
    assert (path / "metrics.json").read_text() == '{"mine": 1}'


def test_the_test_part_is_the_default_where_there_is_one(model, shapes, tmp_path):
    rows = [
        (p, p.parent.name, p.parts[-3], "test" if p.stem == "0" else "train") for p in sorted(shapes.rglob("*.png"))
    ]
    manifest = write_csv(tmp_path / "images.csv", rows)
    for arguments, images in (([], 4), (["--split", "train"], 20), (["--split", "all"], 24)):
        result = run("evaluate", model, manifest, "--json", "-o", tmp_path / "report", *arguments)
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
