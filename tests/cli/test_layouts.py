"""Folders and lists as people have them, through the commands that read them."""
# ruff: noqa: F811  (fixtures are imported, then named as arguments)

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from bayescal.estimator.artifact import CONFIG
from command_line import CLASSES, _own_cache, _trained, model, refused, run, shape, shapes  # noqa: F401

pytestmark = pytest.mark.xdist_group("command-line")


def fit(data, output: Path, *more):
    return run("fit", data, "-o", output, "--method", "clip", *more)


def record(path: Path) -> dict:
    return json.loads((path / CONFIG).read_text())["training"]


def test_test_folders_are_never_learned_from_and_are_what_is_evaluated(tmp_path):
    for number, split in enumerate(("Training", "testing")):
        for name in CLASSES:
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(4):
                shape(name, "photo", 10 * number + i).save(folder / f"{i}.png")
    made = fit(tmp_path / "data", tmp_path / "model")
    assert made.code == 0, made.err
    assert made.out.startswith("Read as layout split/class/image: 2 classes (dog, house), one environment, 2 splits (")
    assert "8 test images not touched" in made.out
    found = record(tmp_path / "model")
    assert found["train_images"] + found["validation_images"] == 8
    measured = run("evaluate", tmp_path / "model", tmp_path / "data", "-o", tmp_path / "report", "--json")
    assert (measured.json["images"], measured.json["split"]) == (8, "test")


@pytest.fixture
def dated(tmp_path) -> Path:
    """class/year/image"""
    for name in CLASSES:
        for number, year in enumerate(("2022", "2023")):
            folder = tmp_path / "data" / name / year
            folder.mkdir(parents=True)
            for i in range(3):
                shape(name, "photo", 3 * number + i).save(folder / f"{i}.png")
    return tmp_path / "data"


def test_dates_are_refused_as_classes_and_the_option_that_is_named_works(dated, tmp_path):
    for command in (("fit", dated, "-o", tmp_path / "model"), ("data", "check", dated)):
        refused(
            run(*command), "read as environment/class/image", "2022, 2023, which look like dates", "--layout class "
        )
    made = fit(dated, tmp_path / "model", "--layout", "class")
    assert made.code == 0, made.err
    assert "Read as layout class/image: 2 classes (dog, house), one environment." in made.out
    checked = run("data", "check", dated, "--layout", "class", "--shots", 2, "--val-shots", 1)
    assert "Read as layout class/image: 2 classes (dog, house), one environment." in checked.out
    measured = run("evaluate", tmp_path / "model", dated, "--layout", "class/*", "-o", tmp_path / "r", "--json")
    assert measured.json["images"] == 12, measured.err


def test_who_sits_at_the_terminal_is_asked(dated, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("bayescal.cli.layout_options.in_terminal", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda text, **more: asked.append(text) or 1)
    made = fit(dated, tmp_path / "model")
    assert made.code == 0, made.err
    assert asked == ["Which one"]
    assert "  1  class/image: 2 classes (dog, house), one environment" in made.err
    assert "To be asked no more: --layout class" in made.err
    assert "Read as layout class/image" in made.out


def test_classes_in_names_and_columns_of_other_names(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    rows = ["Bild;Etikett"]
    for name in CLASSES:
        for i in range(3):
            shape(name, "photo", i).save(flat / f"{name}_{i:02}.png")
            rows.append(f"flat/{name}_{i:02}.png;{name}")
    refused(fit(flat, tmp_path / "model"), "say --class-from-name")
    made = fit(flat, tmp_path / "model", "--class-from-name")
    assert "2 classes (dog, house), one environment" in made.out, made.err
    (tmp_path / "list.csv").write_bytes("\r\n".join(rows).encode("utf-16"))
    made = fit(tmp_path / "list.csv", tmp_path / "model", "--columns", "path=Bild,class=Etikett", "--force")
    assert made.out.startswith('Read as columns path from "Bild", class from "Etikett"; no environments'), made.err
    assert record(tmp_path / "model")["train_images"] == 4


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder))
    return path


def test_archives_and_urls_are_learned_from_and_answered(tmp_path, shapes):
    fsspec = pytest.importorskip("fsspec")
    archive = zipped(shapes, tmp_path / "shapes.zip")
    store = fsspec.filesystem("memory")
    for file in shapes.rglob("*.png"):
        store.pipe(f"/shapes/{file.relative_to(shapes)}", file.read_bytes())
    digests = []
    for number, data in enumerate((shapes, archive, "memory://shapes")):
        made = fit(data, tmp_path / f"model{number}")
        assert made.code == 0, made.err
        digests.append(record(tmp_path / f"model{number}")["split"])
        answers = run("predict", tmp_path / "model0", data, "--json").json
        assert [answer["status"] for answer in answers] == ["ok"] * 24
        digests.append([answer["probabilities"] for answer in answers])
    store.rm("/shapes", recursive=True)
    assert digests[:2] == digests[2:4] == digests[4:]
    one = run("predict", tmp_path / "model0", f"{archive}/photo/dog/0.png", "--json").json
    assert one[0]["image"] == f"{archive}/photo/dog/0.png"


def test_predict_answers_for_every_picture_and_names_what_is_none(tmp_path, model, shapes):
    folder = tmp_path / "new"
    folder.mkdir()
    shutil.copy(shapes / "photo" / "dog" / "0.png", folder / "a.png")
    (folder / "b.psd").write_bytes(b"8BPS" + bytes(80))
    (folder / "notes.txt").write_text("x")
    os.symlink("loop.png", folder / "loop.png")
    with open(os.path.join(os.fsencode(folder), b"caf\xe9.png"), "wb") as file:
        file.write((folder / "a.png").read_bytes())
    result = run("predict", model, folder, "--csv")
    assert result.code == 0, result.err
    assert [line.split(",")[1] for line in result.out.splitlines()[1:]] == ["ok", "unreadable"]
    assert "is a Photoshop file, which is not read here" in result.out
    assert "2 files left out: caf\\udce9.png (its name is not UTF-8), loop.png (a link to itself)" in result.err
    assert "1 file is no image: notes.txt" in result.err
    odd = os.fsdecode(os.path.join(os.fsencode(folder), b"caf\xe9.png"))
    both = run("predict", model, odd, folder / "a.png", "--csv")
    assert both.code == 0
    assert "left out" in both.err
    assert len(both.out.splitlines()) == 2


@pytest.mark.parametrize("layout", ["environment", "environment/klass", "class/class"])
def test_layouts_that_make_no_sense_are_refused(shapes, tmp_path, layout):
    refused(fit(shapes, tmp_path / "model", "--layout", layout), "layout")
