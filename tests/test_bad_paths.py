"""Places that cannot be written to, full disks, Ctrl-C, damaged models, backbones that do not belong to a model.

As in test_bad_input.py: a clear message that names the thing, exit code 2, nothing half-written.
"""
# ruff: noqa: F811  (fixtures are imported, then named as arguments)

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from bayescal.cli.evaluate import OURS
from bayescal.estimator.artifact import CONFIG, TENSORS, read_artifact, write_artifact
from command_line import _own_cache, _trained, data, fit, left_in, make_shapes, model, refused, run, shapes  # noqa: F401

pytestmark = pytest.mark.xdist_group("command-line")


# ---- paths to write to ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("function", ["bayescal.features.store._append", "os.fsync"])  # features; the model itself
def test_a_full_disk_leaves_nothing_and_the_same_command_works_later(tmp_path, data, monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setattr(function, full)
        result = fit(data, tmp_path / "model", "--cache", tmp_path / "cache")
        assert result.code == 2, result.err
        assert "disk is full" in result.err or "No space left" in result.err
        assert "Traceback" not in result.err
        assert left_in(tmp_path) == ["cache", "data"]
    assert fit(data, tmp_path / "model", "--cache", tmp_path / "cache").code == 0


def test_a_checkpoint_that_cannot_be_written_is_noted_and_training_goes_on(tmp_path, data, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", full_for_rust)
    result = fit(data, tmp_path / "model")
    assert result.code == 0
    assert "could not write a checkpoint" in result.err
    assert left_in(tmp_path) == ["data", "model"]


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
    path = tmp_path / "disk"
    path.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(path)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_really_full(small_disk, tmp_path, data, model, shapes):
    (small_disk / "filler").write_bytes(b"x" * 88_000)
    before = left_in(small_disk)
    assert fit(data, small_disk / "model").code == 2
    report = run("evaluate", model, shapes, "-o", small_disk / "report")
    refused(report, str(small_disk / "report"), "No space left")
    refused(run("predict", model, *[shapes] * 3, "-o", small_disk / "answers.json"), "answers.json", "No space left")
    written = left_in(small_disk / "report")  # each file whole or not there; the metrics, which come first, are
    assert written[0] == "metrics.json"
    assert set(written) < set(OURS)
    assert 0 <= json.loads((small_disk / "report" / "metrics.json").read_text())["accuracy"] <= 1
    assert left_in(small_disk) == sorted([*before, "report"])
    shutil.rmtree(small_disk / "report")
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
    arguments = [
        "fit",
        str(data),
        "-o",
        str(tmp_path / "model"),
        "--set",
        "epochs=1",
        "--method",
        "coop",
        "--cache",
        str(cache),
    ]
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
    save_file(weights | {"visual.proj": weights["visual.proj"] * float("nan")}, folder / "nan.safetensors")
    return {name: f"{TINY}:{folder / name}.safetensors" for name in ("good", "nan")}


def test_a_model_made_with_another_backbone_is_refused(tmp_path, data, model, other_backbones):
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
def copy(tmp_path, model) -> Path:
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
def test_a_model_that_was_tampered_with_or_cut_short(copy, shapes, damage, said):
    damage(copy)
    refused(run("predict", copy, shapes), str(copy), said)
    refused(run("evaluate", copy, shapes), str(copy), said)
    assert left_in(copy.parent) == ["copy"]


def test_a_model_of_a_method_that_is_not_here(copy, shapes):
    tensors, config = read_artifact(copy)
    write_artifact(copy, tensors, {**config, "method": "from-the-future"}, overwrite=True)
    refused(run("predict", copy, shapes), "from-the-future")


def test_a_model_that_does_not_exist(tmp_path, shapes):
    refused(run("predict", tmp_path / "modle", shapes), "modle is not a model")
    refused(run("evaluate", tmp_path / "modle", shapes), "modle is not a model")
    assert left_in(tmp_path) == []
