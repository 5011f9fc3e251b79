"""The folder that `bayescal export` writes: what is in it, whole or not at all, and checked when it is read."""

import hashlib
import json
import re
import shutil
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from exporting import WEB as PACKAGE

from bayescal.errors import ArtifactError
from bayescal.export.folder import OURS, WEB, WEB_FILES
from bayescal.export.reading import ExportedModel
from bayescal.util.checksum import sealed
from command_line import left_in, refused, run

pytestmark = pytest.mark.xdist_group("exported")
GONE = object()
OPSET = [onnx.helper.make_opsetid("", 18)]


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


def forge(copy: Path, name: str, value: object, graph: bytes | None = None) -> None:
    """Another value in labels.json, "preprocessing.size" is in an object; and another graph; checksums fit."""
    about = json.loads((copy / "labels.json").read_text())
    if graph is not None:
        (copy / "model.onnx").write_bytes(graph)
        about["files"]["model.onnx"] = {"bytes": len(graph), "sha256": hashlib.sha256(graph).hexdigest()}
    *above, last = name.split(".") if name not in about["files"] else ("files", name)
    inside = reduce(dict.__getitem__, above, about)
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    (copy / "labels.json").write_text(json.dumps(sealed(about)))


def test_a_graph_that_is_none_says_so(copy):
    forge(copy, "version", "x", b"nothing")
    with pytest.raises(ArtifactError, match="cannot be used by onnxruntime"):
        ExportedModel(copy)


def test_a_graph_of_something_else_says_so(copy):
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), ir_version=9, opset_imports=OPSET)
    forge(copy, "version", "x", graph.SerializeToString())
    with pytest.raises(ArtifactError, match="is another graph"):
        ExportedModel(copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, GONE) for name in ("classes", "class_words", "environments", "threshold", "temperature", "expected")),
        *((name, GONE) for name in ("preprocessing", "method", "backbone", "fingerprint", "files", "model.onnx")),
        ("classes", []), ("classes", "dog"), ("classes", ["dog", "dog"]), ("classes", ["a", "b", "c"]),
        ("class_words", ["dog"]), ("class_words", [1, 2]), ("environments", []), ("environments", [[], {}]),
        ("threshold", "high"), ("threshold", 10**30), ("unfamiliar_below", []), ("temperature", -1),
        ("expected", 3), ("files", []), ("model.onnx", {"bytes": "1"}), ("feature_width", "512"), ("feature_width", 0),
        ("preprocessing", 3), ("preprocessing.size", 10**9), ("preprocessing.size", 0), ("preprocessing.mean", 0.5),
        ("preprocessing.std", [1, 0, 1]), ("preprocessing.std", [1, 1]), ("preprocessing.interpolation", "cubic"),
        ("preprocessing.resize_mode", None), ("classes", ["\ud800", 10**400]),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_are_a_sentence(copy, name, value):
    forge(copy, name, value)
    with pytest.raises(ArtifactError, match=re.escape(str(copy))) as caught:
        ExportedModel(copy)
    assert "\n" not in str(caught.value)


def test_environments_that_the_labels_do_not_name_are_a_sentence(copy):
    forge(copy, "environments", ["only one"])
    model = ExportedModel(copy)
    model._session = SimpleNamespace(run=lambda outputs, given: answer_of(1, outputs))
    with pytest.raises(ArtifactError, match=r"labels\.json does not"):
        model.predict_pixels(np.zeros((1, 8, 8, 3), np.uint8))


def answer_of(environment: int, outputs: tuple[str, ...]) -> list[np.ndarray]:
    values = {name: np.zeros(1, np.float32) for name in outputs}
    values |= {"probabilities": np.full((1, 2), 0.5, np.float32), "environment": np.array([environment])}
    return [values[name] for name in outputs]


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
