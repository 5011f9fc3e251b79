"""A model on disk: nothing is read that is damaged, foreign or executable."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayescal.errors import ArtifactError
from bayescal.estimator.artifact import CONFIG, FORMAT_VERSION, TENSORS, read_artifact, write_artifact
from bayescal.estimator.predictor import Predictor
from bayescal.util.checksum import checksum

pytestmark = pytest.mark.xdist_group("artifact")


def refused(model: Path, *said: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Predictor.load(model)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize("where", [0.0, 0.02, 0.5, 0.999])
def test_one_flipped_bit_in_the_tensors_is_refused(model, where):
    blob = bytearray((model / TENSORS).read_bytes())
    blob[int(where * len(blob))] ^= 1
    (model / TENSORS).write_bytes(blob)
    refused(model, str(model / TENSORS), "was changed after it was written")


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_tensors_cut_short_are_refused(model, keep):
    (model / TENSORS).write_bytes((model / TENSORS).read_bytes()[:keep])
    refused(model, str(model / TENSORS), "cut short")


def test_tensors_that_grew_are_refused(model):
    with (model / TENSORS).open("ab") as file:
        file.write(b"\0")
    refused(model, str(model / TENSORS))


def test_tensors_of_another_model_are_refused(model, tmp_path):
    tensors, _ = read_artifact(model)
    other = {name: value + 1 for name, value in tensors.items()}
    write_artifact(tmp_path / "other", other, {})
    assert (tmp_path / "other" / TENSORS).stat().st_size == (model / TENSORS).stat().st_size
    shutil.copy(tmp_path / "other" / TENSORS, model / TENSORS)
    refused(model, str(model / TENSORS))


def test_missing_files_are_refused(model):
    (model / TENSORS).unlink()
    refused(model, str(model / TENSORS), "cannot be read")
    (model / CONFIG).unlink()
    refused(model, str(model), CONFIG, TENSORS, "not a model")
    refused(model.parent / "nowhere", "nowhere", "not a model")


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config.update(threshold=0.0),
        lambda config: config["config"].update(n_context=5),
        lambda config: config["classes"].reverse(),
        lambda config: config["files"][TENSORS].update(bytes=1),
        lambda config: config.pop("seeds"),
        lambda config: config.update(checksum="0" * 64),
        lambda config: config.pop("checksum"),
        lambda config: config.update(more=1),
    ],
)
def test_an_edited_config_is_refused(model, edit):
    config = json.loads((model / CONFIG).read_text())
    edit(config)
    (model / CONFIG).write_text(json.dumps(config))
    refused(model, str(model / CONFIG), "was changed after it was written")


def test_another_layout_of_the_same_config_is_fine(model):
    """What counts is what it says: line ends and indentation may be changed by tools that copy text."""
    config = json.loads((model / CONFIG).read_text())
    (model / CONFIG).write_text(json.dumps(dict(reversed(config.items()))).replace("\n", "\r\n"))
    assert Predictor.load(model).classes == ["ball", "box", "tent"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"\x00\xff\xfe garbage", b"[" * 100_000, b'{"format": "bayescal-model", "format_version": 1'],
    ids=["empty", "cut", "binary", "deep", "half"],
)
def test_garbage_instead_of_json_is_refused(model, garbage):
    (model / CONFIG).write_bytes(garbage)
    refused(model, str(model / CONFIG), "damaged")


@pytest.mark.parametrize("other", ["[]", "1", '"text"', "null", "{}", '{"format": "something"}'])
def test_json_of_something_else_is_refused(model, other):
    (model / CONFIG).write_text(other)
    refused(model, str(model / CONFIG), "does not describe a bayescal model")


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", None])
def test_an_unknown_format_version_is_refused(model, version):
    config = json.loads((model / CONFIG).read_text())
    config["format_version"] = version
    del config["checksum"]
    config["checksum"] = checksum(config)  # a true file of another version has a true checksum
    (model / CONFIG).write_text(json.dumps(config))
    refused(model, str(model), f"format version {version}", f"reads version {FORMAT_VERSION}")


def test_another_backbone_is_refused(saved, mini, monkeypatch):
    changed = replace(mini, name="mini", fingerprint="0" * 20)
    monkeypatch.setattr("bayescal.estimator.predictor.load_backbone", lambda name, device: changed)
    refused(saved, str(saved), mini.fingerprint, "0" * 20, "'mini'")


def test_a_model_of_the_first_mini_is_refused_in_one_sentence(model):
    config = json.loads((model / CONFIG).read_text())
    config["backbone"] = {"name": "mini", "fingerprint": "51ae2cf3ce023ff0e617"}  # as the first mini's models say it
    del config["checksum"]
    config["checksum"] = checksum(config)
    (model / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ArtifactError) as caught:
        Predictor.load(model)
    said = "was made with the first mini, which is no longer part of the package: fit again"
    assert str(caught.value) == f"{model} {said}"


def test_where_the_backbone_is_now_may_be_said(saved, mini, monkeypatch):
    asked = []
    moved = replace(mini, name="mini:/new/place")
    monkeypatch.setattr("bayescal.estimator.predictor.load_backbone", lambda name, device: asked.append(name) or moved)
    assert Predictor.load(saved, backbone="mini:/new/place").backbone is moved
    assert asked == ["mini:/new/place"]


NO_PICKLE = """
import pickle, sys
import torch
from bayescal import FewShotClassifier

def explode(*given, **more):
    raise AssertionError("a pickle was loaded")

pickle.load = pickle.loads = torch.load = explode
pickle.Unpickler = type("Unpickler", (pickle.Unpickler,), {"load": explode})
model, cache, *paths = sys.argv[1:]
print(len(FewShotClassifier.load(model, cache=cache).predict(paths)))
"""


def test_nothing_is_unpickled(saved, cache, paths):
    command = [sys.executable, "-c", NO_PICKLE, str(saved), str(cache), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(len(paths))), done.stderr


def test_a_pickle_in_place_of_the_tensors_is_not_run(model, tmp_path):
    """Even with sizes and sums that fit it: what reads the tensors knows no pickle."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    blob = pickle.dumps(Trap())
    pickle.loads(blob)
    assert (tmp_path / "sprung").is_dir()  # the trap works
    (tmp_path / "sprung").rmdir()
    torch.save({"a": Trap()}, tmp_path / "archive.pt")
    for content in (blob, (tmp_path / "archive.pt").read_bytes()):
        config = json.loads((model / CONFIG).read_text())
        config["files"][TENSORS] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        del config["checksum"]
        config["checksum"] = checksum(config)
        (model / CONFIG).write_text(json.dumps(config))
        (model / TENSORS).write_bytes(content)
        refused(model, str(model / TENSORS))
        assert not (tmp_path / "sprung").exists()
