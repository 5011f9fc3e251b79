"""The folder that `bayescal export` writes: what is in it, whole or not at all, and checked when it is read."""

import json
import shutil
from pathlib import Path

import pytest
from exporting import WEB as PACKAGE

from bayescal.errors import ArtifactError
from bayescal.export.folder import OURS, WEB, WEB_FILES
from bayescal.export.reading import ExportedModel
from command_line import left_in, refused, run

pytestmark = pytest.mark.xdist_group("exported")


@pytest.fixture
def copy(exported, tmp_path) -> Path:
    """The exported model, to be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "copy", ignore=shutil.ignore_patterns(WEB)))


def test_what_is_in_it(exported):
    assert left_in(exported) == sorted(name for name in OURS if name != WEB or PACKAGE.is_dir())
    readme = (exported / "README.md").read_text()
    assert "{{" not in readme
    assert "bayes-cal on mini 2, 2 classes, float32" in readme
    if PACKAGE.is_dir():
        assert left_in(exported / WEB) == sorted(WEB_FILES)


def test_the_ten_lines_of_python_work(exported, model, shapes, monkeypatch, capsys):
    code = (exported / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 12
    image = next(shapes.glob("photo/dog/*.png"))
    monkeypatch.chdir(exported)
    exec(code.replace('"photo.jpg"', repr(str(image))), {})
    said = capsys.readouterr().out.split()
    (answer,) = run("predict", model, image, "--json").json
    assert said[0] == answer["class"]
    assert float(said[1]) == pytest.approx(answer["confidence"], abs=1e-4)


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model.onnx", lambda content: content[:-100], "cut short or replaced"),
        ("model.onnx", lambda content: content[:1000] + b"x" + content[1001:], "was changed after it was written"),
        ("labels.json", lambda content: content.replace(b'"dog"', b'"cat"'), "was changed after it was written"),
        ("labels.json", lambda content: content[:50], "is damaged"),
        ("labels.json", lambda content: b"[]", "does not describe an exported model"),
        ("labels.json", lambda content: content.replace(b'_version": 1', b'_version": 9'), "format version 9"),
    ],
)
def test_damage_is_found(copy, file, spoil, words):
    (copy / file).write_bytes(spoil((copy / file).read_bytes()))
    with pytest.raises(ArtifactError, match=words):
        ExportedModel(copy)


def test_a_graph_that_is_none_says_so(copy):
    """With checksums that fit."""
    import hashlib

    from bayescal.export.reading import checksum

    about = json.loads((copy / "labels.json").read_text())
    del about["checksum"]
    (copy / "model.onnx").write_bytes(b"nothing")
    about["files"]["model.onnx"] = {"bytes": 7, "sha256": hashlib.sha256(b"nothing").hexdigest()}
    (copy / "labels.json").write_text(json.dumps({**about, "checksum": checksum(about)}))
    with pytest.raises(ArtifactError, match="cannot be used by onnxruntime"):
        ExportedModel(copy)


def test_a_folder_that_is_no_export(model):
    with pytest.raises(ArtifactError, match="is not an exported model"):
        ExportedModel(model)


def test_refusals_come_before_the_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr("bayescal.end_to_end.load_model", lambda *_: pytest.fail("the model was read"))
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    refused(run("export", model, "-o", there), "exists already", "--force")
    refused(run("export", model, "-o", there, "--force"), "holds something else than an exported model (mine.txt)")
    refused(run("export", model, "-o", tmp_path / "a", "--format", "tflite"), "--format tflite: expected onnx")
    refused(run("export", model, "-o", tmp_path / "a", "--precision", "int4"), "expected float32, float16, int8")
    refused(run("export", model, "-o", tmp_path / "a", "--precision", "int8"), "--precision int8 needs --check FOLDER")
    refused(run("export", model, "-o", tmp_path / "a", "--web", there), "is not the npm package onnxruntime-web")
    assert left_in(tmp_path) == ["there"]
    assert left_in(there) == ["mine.txt"]


def test_a_missing_package_names_the_extra(model, tmp_path, monkeypatch):
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnx" else find_spec(name))
    refused(run("export", model, "-o", tmp_path / "a"), "export needs the package onnx", "bayescal[export]")
