"""Bad input from a user's side: a clear message that names the thing, exit code 2, nothing half-written.

What can be worked with (odd image formats, a missing class, one environment) is worked with, and said.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import save_file

from bayescal.artifact import CONFIG, TENSORS, read_artifact, write_artifact
from command_line import (  # noqa: F401
    _own_cache,
    _trained,
    fit,
    make_shapes,
    model,
    run,
    shape,
    shapes,
    write_csv,
)

pytestmark = pytest.mark.xdist_group("command-line")


def refused(result, *said: str) -> None:
    """Exit code 2, one message with these words in it, no traceback."""
    assert result.code == 2, result.err
    assert "Error: " in result.err
    assert "Traceback" not in result.err
    for words in said:
        assert words in result.err


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def data(tmp_path) -> Path:
    """A data set that a test may spoil; the only thing in `tmp_path`."""
    return make_shapes(tmp_path / "data", n=4)


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


def test_the_orientation_of_the_camera_is_applied(tmp_path, model):  # noqa: F811
    upright = shape("dog", "photo", 60)
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90° clockwise to see it upright"
    upright.save(tmp_path / "upright.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "unmarked.png")
    turned, unmarked, expected = (
        list(answer["probabilities"].values()) for answer in run("predict", model, tmp_path, "--json").json
    )
    assert turned == expected
    assert unmarked != expected


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


# ---- places to write to --------------------------------------------------------------------------------------------


def test_output_folder_that_exists_needs_force(tmp_path, data):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("precious")
    refused(fit(data, tmp_path / "model"), str(tmp_path / "model"), "exists already", "--force")
    refused(fit(data, tmp_path / "model", "--force"), "thesis.tex", "not replaced")
    assert left_in(tmp_path / "model") == ["thesis.tex"]
    (tmp_path / "model" / "thesis.tex").unlink()
    assert fit(data, tmp_path / "model", "--force").code == 0
    assert left_in(tmp_path / "model") == [CONFIG, TENSORS]
    before = (tmp_path / "model" / TENSORS).read_bytes()
    assert fit(data, tmp_path / "model", "--force", "--seed", 5).code == 0
    assert (tmp_path / "model" / TENSORS).read_bytes() != before
    assert left_in(tmp_path) == ["data", "model"]


def test_output_below_a_file_is_refused_before_any_work(tmp_path, data):
    (tmp_path / "file").write_text("")
    refused(fit(data, tmp_path / "file" / "model"), str(tmp_path / "file"), "is a file")


def full(*_args, **_more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_rust(*_args, **_more):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("place", "failing"),
    [
        ("bayescal.features.store._append", full),  # features
        ("safetensors.torch.save_file", full_for_rust),  # checkpoints of the training
        ("os.fsync", full),  # the model itself
    ],
)
def test_a_full_disk_leaves_nothing_and_the_same_command_works_later(tmp_path, data, monkeypatch, place, failing):
    with monkeypatch.context() as patch:
        patch.setattr(place, failing)
        result = fit(data, tmp_path / "model", "--cache", tmp_path / "cache")
        assert result.code == 2, result.err
        assert "disk is full" in result.err or "No space left" in result.err
        assert "Traceback" not in result.err
        assert left_in(tmp_path) == ["cache", "data"]
    assert fit(data, tmp_path / "model", "--cache", tmp_path / "cache").code == 0


def test_a_full_disk_keeps_the_model_that_was_there(tmp_path, data, monkeypatch):
    assert fit(data, tmp_path / "model").code == 0
    before = (tmp_path / "model" / TENSORS).read_bytes()
    monkeypatch.setattr("os.fsync", full)
    refused(fit(data, tmp_path / "model", "--force", "--seed", 5), "could not write the model", "No space left")
    assert (tmp_path / "model" / TENSORS).read_bytes() == before
    assert left_in(tmp_path) == ["data", "model"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 kB, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk, tmp_path, data, model, shapes):  # noqa: F811
    (small_disk / "filler").write_bytes(b"x" * 88_000)
    before = left_in(small_disk)
    assert fit(data, small_disk / "model").code == 2
    report = run("evaluate", model, shapes, "-o", small_disk / "report")
    refused(report, str(small_disk / "report"), "No space left")
    refused(run("predict", model, *[shapes] * 3, "-o", small_disk / "answers.json"), "answers.json", "No space left")
    assert left_in(small_disk) == before
    features = fit(data, tmp_path / "model", "--cache", small_disk / "cache")
    refused(features, "the disk is full", str(small_disk / "cache"), "BAYESCAL_CACHE")
    assert left_in(tmp_path) == ["data", "disk"]


# ---- interruption --------------------------------------------------------------------------------------------------

SIGINT_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background switches it off
from bayescal.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_while_features_are_computed_and_the_same_command_continues(tmp_path):
    per_cell = 100
    data, cache = make_shapes(tmp_path / "data", n=per_cell), tmp_path / "cache"
    arguments = ["fit", str(data), "-o", str(tmp_path / "model"), "--set", "epochs=1", "--cache", str(cache)]
    process = subprocess.Popen(
        [sys.executable, "-c", SIGINT_PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not any(cache.rglob("*.keys")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; the same command continues" in err
    assert "Traceback" not in err
    assert not (tmp_path / "model").exists()
    rows = lambda: sum(file.stat().st_size for file in cache.rglob("*.keys")) // 40  # noqa: E731
    finished = rows()
    assert 0 < finished < 4 * per_cell
    result = run(*arguments)
    assert result.code == 0, result.err
    assert rows() == 4 * per_cell  # nothing was computed twice
    assert left_in(tmp_path) == ["cache", "data", "model"]


# ---- backbones and models ------------------------------------------------------------------------------------------

TINY = "bayescal-bad-input-tiny"


@pytest.fixture(scope="module")
def other_backbones(tmp_path_factory) -> dict[str, str]:
    """Names of two backbones of a tiny architecture: random weights, and weights that are not numbers."""
    import open_clip
    from open_clip.model import CLIP

    folder = tmp_path_factory.mktemp("backbones")
    config = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
    }
    (folder / f"{TINY}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / f"{TINY}.json")
    torch.manual_seed(0)
    weights = CLIP(**config).state_dict()
    save_file(weights, folder / "good.safetensors")
    save_file(
        {n: w * float("nan") if n == "visual.proj" else w for n, w in weights.items()}, folder / "nan.safetensors"
    )
    return {name: f"{TINY}:{folder / name}.safetensors" for name in ("good", "nan")}


def test_a_model_made_with_another_backbone_is_refused(tmp_path, data, model, other_backbones):  # noqa: F811
    wrong = run("predict", model, data, "--backbone", other_backbones["good"])
    refused(wrong, str(model), "made with backbone 'mini'", TINY)
    made = fit(data, tmp_path / "model", "--backbone", other_backbones["good"], "--views", 1)
    assert made.code == 0, made.err
    refused(run("evaluate", tmp_path / "model", data, "--backbone", "mini"), "made with backbone", TINY)
    assert left_in(tmp_path) == ["data", "model"]
    assert run("predict", tmp_path / "model", data).code == 0


def test_features_that_are_not_numbers(tmp_path, data, other_backbones):
    result = fit(data, tmp_path / "model", "--backbone", other_backbones["nan"], "--cache", tmp_path / "cache")
    refused(result, TINY, "not finite", ".png")
    assert left_in(tmp_path) == ["cache", "data"]
    assert not any(file.stat().st_size for file in (tmp_path / "cache").rglob("*.rows"))


@pytest.fixture
def copy(tmp_path, model) -> Path:  # noqa: F811
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda m: cut(m / TENSORS), f"{TENSORS} has"),
        (lambda m: flip(m / TENSORS), f"{TENSORS} was changed"),
        (lambda m: (m / TENSORS).unlink(), f"{TENSORS} cannot be read"),
        (lambda m: cut(m / CONFIG), f"{CONFIG} is damaged"),
        (lambda m: edit(m / CONFIG, threshold=0.0), f"{CONFIG} was changed"),
        (lambda m: edit(m / CONFIG, format_version=99), "format version 99"),
        (lambda m: edit(m / CONFIG, format="other"), "does not describe a bayescal model"),
        (lambda m: (m / CONFIG).write_text("[]"), "does not describe a bayescal model"),
        (lambda m: (m / CONFIG).write_bytes(b"\xff\xfe\x00"), f"{CONFIG} is damaged"),
        (lambda m: (m / CONFIG).unlink(), "is not a model"),
    ],
)
def test_a_model_that_was_tampered_with_or_cut_short(copy, shapes, damage, said):  # noqa: F811
    damage(copy)
    refused(run("predict", copy, shapes), str(copy), said)
    refused(run("evaluate", copy, shapes), str(copy), said)
    assert left_in(copy.parent) == ["copy"]


def test_a_model_of_a_method_that_is_not_here(copy, shapes):  # noqa: F811
    tensors, config = read_artifact(copy)
    write_artifact(copy, tensors, {**config, "method": "from-the-future"}, overwrite=True)
    refused(run("predict", copy, shapes), "from-the-future")


def test_a_model_that_does_not_exist(tmp_path, shapes):  # noqa: F811
    refused(run("predict", tmp_path / "modle", shapes), "modle is not a model")
    refused(run("evaluate", tmp_path / "modle", shapes), "modle is not a model")
    assert left_in(tmp_path) == []
