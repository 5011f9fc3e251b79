"""`bayescal predict`: every way to name images, every form of answer, and images that cannot be read."""

import csv
import io
import json
import math
import re
import shutil
import sys

import openpyxl
import pyarrow.parquet
import pytest

from bayescal.cli import predictions
from bayescal.cli.image_list import list_images
from bayescal.cli.sorting import folder_of
from bayescal.estimator.answers import Answer
from bayescal.estimator.classifier import FewShotClassifier
from bayescal.estimator.predictor import Predictor
from bayescal.features import FeatureBank
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


def _parquet(path):
    return pyarrow.parquet.read_table(path).to_pylist()


def _xlsx(path):
    header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
    return [dict(zip(header, row, strict=True)) for row in rows]


READERS = {
    "a.json": lambda path: json.loads(path.read_text()),
    "a.jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
    "a.csv": lambda path: list(csv.DictReader(path.open())),
    "A.PARQUET": _parquet,
    "a.xlsx": _xlsx,
}


@pytest.mark.parametrize("name", READERS)
def test_an_output_file_is_written_in_the_format_of_its_name(model, shapes, tmp_path, name):
    result = run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / name, "--probabilities")
    assert (result.code, result.out) == (0, "")
    assert "6 answers written to" in result.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    rows, expected = READERS[name](tmp_path / name), run("predict", model, shapes / "photo" / "dog", "--json").json
    assert [row["image"] for row in rows] == [row["image"] for row in expected]
    for row, said in zip(rows, expected, strict=True):
        assert row["class"] == said["class"]
        assert str(row["unsure"]).lower() == str(said["unsure"]).lower()
        assert float(row["confidence"]) == pytest.approx(said["confidence"], abs=1e-6)
        house = row["probabilities"]["house"] if "probabilities" in row else row["probability_house"]
        assert float(house) == pytest.approx(said["probabilities"]["house"], abs=1e-6)
    again = run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / name)  # replaces it whole
    assert again.code == 0
    assert len(READERS[name](tmp_path / name)) == 6


def test_a_text_file_holds_the_table_and_an_unknown_ending_is_refused_with_those_there_are(model, shapes, tmp_path):
    assert run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / "a.txt").code == 0
    assert "uncertainty: entropy" in (tmp_path / "a.txt").read_text()
    result = run("predict", model, shapes / "photo" / "dog", "-o", tmp_path / "a.xls")
    assert result.code == 2
    assert ".csv, .json, .jsonl, .parquet, .xlsx, .txt" in " ".join(result.err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_rows_appear_while_images_are_still_being_answered(model, shapes, monkeypatch):
    """Of the parts, each is out before the next is encoded; all together are what one part would be."""
    monkeypatch.setattr(predictions, "FIRST", 5)
    seen, encode = [], FeatureBank.encode

    def watched(bank, sources, **options):
        seen.append((len(sources), sys.stdout.getvalue().count("\n")))
        return encode(bank, sources, **options)

    monkeypatch.setattr(FeatureBank, "encode", watched)
    results = {}
    for form in ("--csv", "--json"):
        seen.clear()
        results[form] = run("predict", model, shapes, form)
        assert [n for n, _ in seen] == [5, 10, 9]
        assert [lines for _, lines in seen] == ([1, 6, 16] if form == "--csv" else [1, 5, 15])
    assert len(results["--json"].json) == 24
    table = run("predict", model, shapes).out
    rows = [line for line in table.splitlines() if "photo" in line or "sketch" in line]
    assert table.count("confidence") == 1, "one header"
    assert len({re.search(r"\d+\.\d %", row).end() for row in rows if re.search(r"\d+\.\d %", row)}) == 1


def test_text_that_a_spreadsheet_would_run_is_text(model, shapes, tmp_path, monkeypatch):
    image = (shapes / "photo" / "dog" / "0.png").read_bytes()
    names = ["=cmd.png", "+1.png", "-x.png", "@y.png", "plain.png"]
    for name in names:
        (tmp_path / name).write_bytes(image)
    monkeypatch.chdir(tmp_path)
    listed = "\n".join(names)
    rows = list(csv.DictReader(io.StringIO(run("predict", model, "-", "--csv", stdin=listed).out)))
    assert [row["image"] for row in rows] == [f"'{name}" for name in names[:4]] + names[4:]
    rows = list(csv.DictReader(io.StringIO(run("predict", model, "-", "--csv", "--raw-csv", stdin=listed).out)))
    assert [row["image"] for row in rows] == names
    assert run("predict", model, "-", "-o", "a.xlsx", stdin=listed).code == 0
    cells = [row[0] for row in openpyxl.load_workbook("a.xlsx").active.iter_rows(min_row=2)]
    assert [(cell.value, cell.data_type) for cell in cells] == [(name, "s") for name in names]


@pytest.fixture
def loose(shapes, tmp_path):
    """A folder of images, two of which have the same name."""
    for number, kind in enumerate(("dog", "house")):
        folder = tmp_path / "loose" / str(number)
        folder.mkdir(parents=True)
        for i in range(2):
            (folder / f"{i}.png").write_bytes((shapes / "photo" / kind / f"{i}.png").read_bytes())
    return tmp_path / "loose"


def sorted_as(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def expected_folders(answers):
    return sorted("unfamiliar" if a["unfamiliar"] else "unsure" if a["unsure"] else a["class"] for a in answers)


@pytest.mark.parametrize("how", ["--copy", "--move", "--link"])
def test_images_are_sorted_into_folders_and_a_second_run_changes_nothing(model, loose, tmp_path, how):
    answers = run("predict", model, loose, "--json").json
    contents = sorted(path.read_bytes() for path in loose.rglob("*.png"))
    target = tmp_path / "sorted"
    result = run("predict", model, loose, "--sort-into", target, how)
    assert result.code == 0, result.err
    found = sorted_as(target)
    assert sorted(found.values()) == contents
    assert sorted(name.split("/")[0] for name in found) == expected_folders(answers)
    assert "4 images" in result.err
    assert len(list(loose.rglob("*.png"))) == (0 if how == "--move" else 4)
    assert all(path.is_symlink() == (how == "--link") for path in target.rglob("*.png"))
    if how == "--move":
        return
    again = run("predict", model, loose, "--sort-into", target, how)
    assert "4 were there already" in again.err
    assert sorted_as(target) == found


def test_what_lies_in_an_archive_is_copied_and_never_moved(model, loose, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "loose"), "zip", loose)
    local = run("predict", model, loose, "--sort-into", tmp_path / "from files")
    assert local.code == 0, local.err
    copied = run("predict", model, archive, "--sort-into", tmp_path / "sorted")
    assert copied.code == 0, copied.err
    assert sorted_as(tmp_path / "sorted") == sorted_as(tmp_path / "from files")
    assert "4 were there already" in run("predict", model, archive, "--sort-into", tmp_path / "sorted").err
    moved = run("predict", model, archive, "--sort-into", tmp_path / "moved", "--move")
    assert "0 images moved" in moved.err
    assert "4 are no files of this computer and can only be copied" in moved.err


def test_sorting_overwrites_nothing_and_marks_what_is_unsure(model, shapes, loose, tmp_path):
    predictor = Predictor.load(model)
    predictor.threshold, predictor.familiarity = 1.1, None
    predictor.save(tmp_path / "shy")
    (tmp_path / "sorted" / "unsure").mkdir(parents=True)
    (tmp_path / "sorted" / "unsure" / "0.png").write_bytes(b"mine")
    result = run("predict", tmp_path / "shy", loose, "--sort-into", tmp_path / "sorted")
    assert result.code == 0, result.err
    found = sorted_as(tmp_path / "sorted")
    assert found["unsure/0.png"] == b"mine"
    assert sorted(found) == sorted(f"unsure/{name}.png" for name in ("0", "0-2", "0-3", "1", "1-2"))


def test_a_class_cannot_lead_out_of_the_folder_or_into_that_of_unsure_images():
    names = {"a/b": "a_b", "..": "_..", "unsure": "unsure (class)", "dog": "dog", "C:\\x": "C__x", "": "_"}
    assert {name: folder_of(Answer("x.png", label=name)) for name in names} == names
    assert folder_of(Answer("x.png", label="dog", unsure=True)) == "unsure"
    assert folder_of(Answer("x.png", label="dog", unsure=True, unfamiliar=True)) == "unfamiliar"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--copy"], "--copy goes with --sort-into DIR"),
        (["--sort-into", "x", "--copy", "--move"], "--copy and --move: choose one"),
        (["--sort-into", "FILE"], "expected a folder"),
        (["--csv", "-o", "a.xlsx"], "the ending says another format; leave out --csv, or end it in .csv"),
        (["--json", "-o", "a.CSV"], "the ending says another format"),
        (["--json", "-o", "a.jsonl"], "the ending says another format"),
    ],
)
def test_what_does_not_go_together_is_refused(model, shapes, tmp_path, options, said):
    (tmp_path / "file").write_text("")
    options = [str(tmp_path / "file") if option == "FILE" else option for option in options]
    result = run("predict", model, shapes, *options)
    assert result.code == 2
    assert said in " ".join(result.err.split())


def test_a_place_that_cannot_be_written_is_refused_before_any_work(model, shapes, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes((shapes / "photo" / "dog" / "0.png").read_bytes())
    for target, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "a.csv", "no folder"),
        (image, "says no format"),
    ):
        result = run("predict", model, image, "-o", target)
        assert result.code == 2
        assert said in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]
    assert run("predict", model, image, "--json", "--csv").code == 2


def test_images_that_are_asked_about_are_not_kept_unless_wanted(model, shapes, tmp_path, monkeypatch):
    image = next(shapes.rglob("*.png"))
    monkeypatch.setenv("BAYESCAL_CACHE", str(tmp_path / "users"))
    plain = run("predict", model, image, "--json")
    assert plain.code == 0
    assert not (tmp_path / "users").exists()
    kept = run("predict", model, image, "--json", "--cache", tmp_path / "cache")
    assert kept.out == plain.out
    assert any((tmp_path / "cache").rglob("*.rows"))


def test_a_cache_that_cannot_be_written_to_is_a_note(model, shapes, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("predict", model, next(shapes.rglob("*.png")), "--json", "--cache", tmp_path / "file")
    assert result.code == 0
    assert result.json[0]["status"] == "ok"
    assert "Note: " in result.err
    assert "goes on without it" in " ".join(result.err.split())
