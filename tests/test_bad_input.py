"""Bad input from a user's side: a clear message that names the thing, exit code 2, nothing half-written.

What can be worked with (odd image formats, a missing class, one environment) is worked with, and said. Places that
cannot be written to, interruptions and damaged models are in test_bad_paths.py.
"""
# ruff: noqa: F811  (fixtures are imported, then named as arguments)

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayescal.estimator.artifact import CONFIG
from command_line import (  # noqa: F401
    _own_cache,
    _trained,
    data,
    fit,
    left_in,
    make_shapes,
    model,
    refused,
    run,
    shape,
    shapes,
    write_csv,
)

pytestmark = pytest.mark.xdist_group("command-line")


# ---- folders -------------------------------------------------------------------------------------------------------


def test_empty_folder(tmp_path):
    (tmp_path / "data").mkdir()
    refused(fit(tmp_path / "data", tmp_path / "model"), str(tmp_path / "data"), "no images", "Expected:")
    assert left_in(tmp_path) == ["data"]


def test_folder_that_does_not_exist(tmp_path):
    refused(fit(tmp_path / "dta", tmp_path / "model"), str(tmp_path / "dta"), "no such folder")
    assert left_in(tmp_path) == []


def test_one_environment_only_works_and_says_what_is_off(tmp_path):
    make_shapes(tmp_path / "data", environments=("photo",))
    result = fit(tmp_path / "data", tmp_path / "model")
    assert result.code == 0, result.err
    assert "Note: only one environment: the IRM term and the environment branch are off" in result.err
    assert run("predict", tmp_path / "model", tmp_path / "data").code == 0


def test_class_missing_in_an_environment_works_and_is_said(tmp_path, data):
    shutil.rmtree(data / "sketch" / "dog")
    result = fit(data, tmp_path / "model")
    assert result.code == 0, result.err
    assert "Note: dog: too few images in sketch" in result.err
    assert "sketch 0" in result.err


def test_one_class_only(tmp_path):
    make_shapes(tmp_path / "data", classes=("dog",))
    refused(fit(tmp_path / "data", tmp_path / "model"), "at least two classes", "dog")
    assert left_in(tmp_path) == ["data"]


def test_fewer_images_than_shots_works_and_is_said(tmp_path, data):
    result = fit(data, tmp_path / "model", "--shots", 6)
    assert result.code == 0, result.err
    assert "dog: too few images in photo, sketch. Taken: training 6" in result.err
    assert "validation 2 of 6" in result.err
    everything = fit(data, tmp_path / "model", "--shots", 50, "--force")
    assert everything.code == 0, everything.err
    assert "training 8 of 50" in everything.err
    assert "no validation images: no answer will be called unsure" in everything.err


# ---- images --------------------------------------------------------------------------------------------------------


def spoil(folder: Path) -> set[str]:
    """Files that no program can read as an image."""
    whole = (folder / "0.png").read_bytes()
    Image.effect_noise((200, 200), 90).convert("RGB").save(folder / "whole.jpg")
    jpeg = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    bad = {
        "text.jpg": b"this is a letter, not a picture",
        "truncated.png": whole[: len(whole) // 2],
        "truncated.jpg": jpeg[: len(jpeg) // 3],
        "zero.jpg": b"",
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    Image.new("1", (20_000, 20_000)).save(folder / "huge.png")
    return {*bad, "huge.png"}


def convertible(folder: Path) -> set[str]:
    """Images of every unusual kind that can be turned into RGB."""
    picture = shape("dog", "photo", 50)
    grey = np.asarray(picture.convert("L"))
    frames = [shape("dog", "photo", i) for i in (51, 52)]
    shape("dog", "photo", 53).convert("CMYK").save(folder / "cmyk.jpg")
    shape("dog", "photo", 54).quantize(16).save(folder / "palette.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / "deep.png")
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    shape("dog", "photo", 55).save(folder / "wrongly_named.jpg", format="PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    shape("dog", "photo", 56).save(folder / "turned.jpg", exif=exif)
    return {"cmyk.jpg", "palette.png", "deep.png", "animated.gif", "wrongly_named.jpg", "turned.jpg"}


def test_odd_images_are_converted_and_unreadable_ones_skipped_with_count_and_names(tmp_path, data):
    bad = spoil(data / "photo" / "dog")
    good = convertible(data / "photo" / "dog")
    result = fit(data, tmp_path / "model")
    assert result.code == 0, result.err
    assert "Note: 5 of 27 images could not be read and were left out (" in result.err
    assert "huge.png: is too large" in result.err  # the first of them, with the reason
    assert "and 2 more" in result.err
    record = json.loads((tmp_path / "model" / CONFIG).read_text())["training"]
    assert record["unreadable_images"] == len(bad)
    assert record["train_images"] + record["validation_images"] == 16 + len(good)

    answers = run("predict", tmp_path / "model", data / "photo" / "dog", "--json").json
    status = {Path(answer["image"]).name: answer["status"] for answer in answers}
    assert {name for name, said in status.items() if said == "unreadable"} == bad
    assert all(status[name] == "ok" for name in good)


def test_the_orientation_of_the_camera_is_applied(tmp_path, model):
    upright = shape("dog", "photo", 60)
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90° clockwise to see it upright"
    upright.save(tmp_path / "upright.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "unmarked.png")
    turned, unmarked, expected = (
        list(answer["probabilities"].values()) for answer in run("predict", model, tmp_path, "--json").json
    )
    assert turned == pytest.approx(expected, abs=1e-5)
    assert unmarked != pytest.approx(expected, abs=1e-3)


def test_when_every_image_of_a_class_is_unreadable_the_class_is_named(tmp_path, data):
    for image in data.glob("*/dog/*.png"):
        image.write_bytes(b"")
    refused(fit(data, tmp_path / "model"), "no readable image of class 'dog'", "8 of 16", "0 bytes")
    assert left_in(tmp_path) == ["data"]


# ---- manifests and names -------------------------------------------------------------------------------------------


def rows_of(data: Path, split=lambda path: "") -> list[tuple]:
    return [(p, p.parent.name, p.parts[-3], split(p)) for p in sorted(data.rglob("*.png"))]


@pytest.mark.parametrize(("first", "second"), [("train", "test"), ("val", "test"), ("train", "val")])
def test_the_same_image_in_two_parts_is_refused(tmp_path, data, first, second):
    parts = {"0": "train", "1": "train", "2": "val", "3": "test"}
    number = {part: stem for stem, part in parts.items()}
    original = data / "photo" / "dog" / f"{number[first]}.png"
    copy = data / "sketch" / "dog" / f"{number[second]}.png"
    copy.write_bytes(original.read_bytes())
    manifest = write_csv(tmp_path / "images.csv", rows_of(data, lambda path: parts[path.stem]))
    refused(fit(manifest, tmp_path / "model"), f"in the {first} and in the {second} set", str(original), str(copy))
    assert left_in(tmp_path) == ["data", "images.csv"]


@pytest.mark.parametrize(
    ("header", "said"),
    [("file,class,environment,split", "no column path"), ("path,label,environment,split", "no column class")],
)
def test_manifest_without_a_column(tmp_path, data, header, said):
    manifest = write_csv(tmp_path / "images.csv", rows_of(data), header)
    refused(fit(manifest, tmp_path / "model"), "images.csv", said)
    assert left_in(tmp_path) == ["data", "images.csv"]


def test_manifest_with_unknown_files(tmp_path, data):
    rows = [*rows_of(data), ("gone.png", "dog", "photo", ""), ("lost.png", "dog", "photo", "")]
    manifest = write_csv(tmp_path / "images.csv", rows)
    refused(fit(manifest, tmp_path / "model"), "images.csv: 2 of 18 files do not exist: gone.png, lost.png")
    assert left_in(tmp_path) == ["data", "images.csv"]


@pytest.mark.parametrize("text", ["", "[]", "{", '[{"path": "a.png"}]', '{"images": 3}', "\ufffe"])
def test_json_that_is_no_manifest(tmp_path, text):
    (tmp_path / "images.json").write_text(text)
    refused(fit(tmp_path / "images.json", tmp_path / "model"), "images.json")
    assert left_in(tmp_path) == ["images.json"]


def test_empty_class_in_a_manifest(tmp_path, data):
    rows = rows_of(data)
    rows[0] = (rows[0][0], "", *rows[0][2:])
    refused(fit(write_csv(tmp_path / "images.csv", rows), tmp_path / "model"), "line 2", "class is empty")


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("dog", "_-_"), "'_-_' has no words in it"),
        (("polar_bear", "Polar bear"), "'Polar bear' and 'polar_bear' are the same to the model"),
        (("собака", "кошка"), "cannot tell the names"),
        (("dog", "dog\u0007"), "control characters"),
    ],
)
def test_class_names_that_the_model_cannot_use(tmp_path, classes, said):
    make_shapes(tmp_path / "data", classes=classes, n=1)
    refused(fit(tmp_path / "data", tmp_path / "model"), said)
    assert left_in(tmp_path) == ["data"]


def test_a_class_name_that_is_not_english_works_and_is_said_and_can_be_given_words(tmp_path):
    make_shapes(tmp_path / "data", classes=("dog", "maison_à_louer"), n=2)
    result = fit(tmp_path / "data", tmp_path / "model")
    assert result.code == 0, result.err
    assert "maison_à_louer" in result.err
    assert "English" in result.err
    (tmp_path / "words.json").write_text(json.dumps({"maison_à_louer": "house"}))
    named = fit(tmp_path / "data", tmp_path / "model2", "--class-words", tmp_path / "words.json")
    assert named.code == 0
    assert "English" not in named.err
    answers = run("predict", tmp_path / "model2", tmp_path / "data", "--json").json
    assert {answer["class"] for answer in answers} <= {"dog", "maison_à_louer"}


def test_a_class_name_longer_than_the_context_of_the_text_tower(tmp_path, data):
    (tmp_path / "words.json").write_text(json.dumps({"dog": "a very long dog " * 40}))
    result = fit(data, tmp_path / "model", "--class-words", tmp_path / "words.json")
    refused(result, "a very long dog", "tokens", "shorter words")
    assert left_in(tmp_path) == ["data", "words.json"]


def test_words_for_a_class_that_does_not_exist(tmp_path, data):
    (tmp_path / "words.json").write_text('{"hous": "house"}')
    result = fit(data, tmp_path / "model", "--class-words", tmp_path / "words.json")
    refused(result, "there is no class 'hous'", "Did you mean 'house'?")
