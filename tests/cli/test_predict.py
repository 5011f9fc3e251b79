"""`bayescal predict`: every way to name images, every form of answer, and images that cannot be read."""

import csv
import io
import json
import math
import re

import pytest

from bayescal.cli.image_list import list_images
from bayescal.estimator.classifier import FewShotClassifier
from bayescal.estimator.predictor import Predictor
from command_line import run

pytestmark = pytest.mark.xdist_group("command-line")


@pytest.fixture
def odd(tmp_path):
    """A folder with a file that is no image."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "broken.jpg").write_bytes(b"not an image at all")
    return tmp_path / "odd"


def test_json_says_everything_the_library_says(model, shapes):
    images = sorted((shapes / "sketch").rglob("*.png"))
    result = run("predict", model, *images, "--json")
    assert (result.code, result.err) == (0, "")
    details = FewShotClassifier.load(model).details(images)
    assert [row["image"] for row in result.json] == [str(image) for image in images]
    for i, row in enumerate(result.json):
        assert row["status"] == "ok"
        assert row["class"] == details.labels[i]
        assert row["environment"] == details.environment[i]
        assert row["unsure"] == bool(details.unsure[i])
        for field in ("confidence", "entropy", "mutual_information"):
            assert row[field] == pytest.approx(float(getattr(details, field)[i]), abs=1e-6)
        assert list(row["probabilities"]) == ["dog", "house"]
        assert list(row["probabilities"].values()) == pytest.approx(details.probabilities[i].tolist(), abs=1e-6)


def test_csv_is_the_same_answers(model, shapes):
    images = sorted((shapes / "photo" / "dog").glob("*.png"))
    rows = list(csv.DictReader(io.StringIO(run("predict", model, *images, "--csv", "--probabilities").out)))
    answers = run("predict", model, *images, "--json").json
    assert [row["class"] for row in rows] == [answer["class"] for answer in answers]
    assert [row["unsure"] for row in rows] == [str(answer["unsure"]).lower() for answer in answers]
    for row, answer in zip(rows, answers, strict=True):
        assert float(row["confidence"]) == pytest.approx(answer["confidence"], abs=1e-6)
        assert float(row["probability_house"]) == pytest.approx(answer["probabilities"]["house"], abs=1e-6)
    assert "probability_dog" not in run("predict", model, images[0], "--csv").out


def test_the_table_shows_the_answer_or_that_it_is_unsure(model, shapes):
    result = run("predict", model, shapes, "--probabilities")
    assert result.code == 0
    answers = run("predict", model, shapes, "--json").json
    assert len(answers) == 24
    # rows may be folded: put the lines together again before looking
    flat = re.sub(r"\s+", " ", result.out)
    assert flat.count("unsure (maybe") == sum(answer["unsure"] for answer in answers)
    assert f"{100 * answers[0]['confidence']:.1f} %" in flat
    assert "uncertainty: entropy, 0 (sure) to 0.69 (no idea)" in flat


@pytest.mark.parametrize("threshold", [1.1, math.inf])  # infinite when no validation image was answered correctly
def test_a_model_that_is_never_sure_says_maybe(model, shapes, tmp_path, threshold):
    predictor = Predictor.load(model)
    predictor.threshold = threshold
    predictor.save(tmp_path / "shy")
    json.loads((tmp_path / "shy" / "config.json").read_text(), parse_constant=pytest.fail)  # JSON that everyone reads
    result = run("predict", tmp_path / "shy", shapes / "photo" / "dog")
    assert result.out.count("unsure (maybe") == 6
    evaluation = run("evaluate", tmp_path / "shy", shapes, "--json", "-o", tmp_path / "report")
    assert evaluation.json["coverage"] == 0
    assert evaluation.json["selective_accuracy"] is None


def test_files_folders_patterns_and_stdin_name_the_same_images(shapes, monkeypatch):
    folder = shapes / "photo" / "dog"
    files = [str(path) for path in sorted(folder.glob("*.png"))]
    for arguments, stdin in (
        (files, ""),
        ([str(folder)], ""),
        ([f"{folder}/*.png"], ""),
        ([f"{shapes}/**/dog/[0-9].png"], ""),
        ([str(folder.parent / "do?")], ""),  # a pattern that matches a folder
        (["-"], "\n".join(files) + "\n\n"),
        (["-"], "\0".join(files)),
        (["-"], str(folder)),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        found = list_images(arguments)
        assert [path for path in found if "sketch" not in path] == files


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(shapes, tmp_path):
    image = tmp_path / "cat[1].png"
    image.write_bytes((shapes / "photo" / "dog" / "0.png").read_bytes())
    assert list_images([str(image)]) == [str(image)]


def test_a_list_on_stdin_is_answered(model, shapes):
    result = run("predict", model, "-", "--json", stdin=f"{shapes}/photo/dog/0.png\n{shapes}/photo/dog/1.png\n")
    assert len(result.json) == 2


def test_unreadable_images_are_listed_and_do_not_stop_the_others(model, shapes, odd, monkeypatch):
    image = shapes / "photo" / "dog" / "0.png"
    result = run("predict", model, odd, image, odd / "missing.jpg", "--json")
    assert result.code == 0
    assert [row["status"] for row in result.json] == ["unreadable", "ok", "unreadable"]
    assert "not an image" in result.json[0]["reason"]
    assert "no such file" in result.json[2]["reason"]
    assert result.json[0]["class"] is None
    assert "2 of 3 images could not be read" in result.err
    assert "broken.jpg" in result.err

    rows = list(csv.DictReader(io.StringIO(run("predict", model, odd, image, "--csv", "--probabilities").out)))
    assert [row["status"] for row in rows] == ["unreadable", "ok"]
    assert rows[0]["reason"]
    assert rows[0]["class"] == rows[0]["confidence"] == rows[0]["probability_dog"] == ""
    monkeypatch.setenv("COLUMNS", "300")
    assert re.search(r"broken\.jpg +unreadable", run("predict", model, odd, image).out)


def test_when_no_image_can_be_read_the_exit_code_is_2(model, odd):
    result = run("predict", model, odd, "--json")
    assert result.code == 2
    assert result.json[0]["status"] == "unreadable"
    assert "Error: the image could not be read: " in result.err
    assert "broken.jpg" in result.err
    assert "none of the 2 images could be read" in run("predict", model, odd, odd, "--csv").err


@pytest.mark.parametrize("name", ["empty", "empty/*.jpg", "-"])
def test_when_there_are_no_images_the_exit_code_is_2(model, tmp_path, name):
    (tmp_path / "empty").mkdir()
    result = run("predict", model, name if name == "-" else tmp_path / name)
    assert result.code == 2
    assert result.out == ""
    assert "no images found" in result.err


@pytest.mark.parametrize(("name", "reads"), [("a.json", json.loads), ("a.csv", csv.reader), ("a.txt", str)])
def test_an_output_file_is_written_in_the_format_of_its_name(model, shapes, tmp_path, name, reads):
    result = run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / name)
    assert (result.code, result.out) == (0, "")
    assert "6 answers written to" in result.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    text = (tmp_path / name).read_text()
    assert reads(text)
    assert "dog" in text
    again = run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / name)  # replaces it whole
    assert again.code == 0
    assert (tmp_path / name).read_text() == text


def test_a_place_that_cannot_be_written_is_refused_before_any_work(model, shapes, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes((shapes / "photo" / "dog" / "0.png").read_bytes())
    for target, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "a.csv", "no folder"), (image, "of the images")):
        result = run("predict", model, image, "-o", target)
        assert result.code == 2
        assert said in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]
    assert run("predict", model, image, "--json", "--csv").code == 2
