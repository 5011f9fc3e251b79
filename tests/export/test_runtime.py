"""`bayescal-runtime` built, installed where there is no torch, and asked: the same answers as `bayescal predict`."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bayescal
from command_line import run
from wheelhouse import offline, write_wheels

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
LARGEST = 200e6  # bytes of everything that is installed
PACKAGES = ("numpy", "pillow", "onnxruntime")

pytestmark = pytest.mark.xdist_group("exported")


def call(*command: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def build(target: str, project: Path, folder: Path) -> Path:
    """The project's "wheel" or "sdist", in the folder."""
    done = call(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder), cwd=project)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", RUNTIME, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the runtime, what it needs, and nothing else."""
    pytest.importorskip("ensurepip", reason="needs the pip that comes with Python (Debian's package python3-venv)")
    path, wheels = (tmp_path_factory.mktemp("environment") / name for name in ("own", "wheels"))
    pip = (str(path / "bin" / "python"), "-m", "pip")
    given = offline(write_wheels(PACKAGES, wheels))
    for command in (
        (sys.executable, "-m", "venv", str(path)),
        (*pip, "install", "--quiet", str(wheel)),
        (*pip, "uninstall", "--quiet", "--yes", "setuptools", "pip"),
    ):
        done = call(*command, **given)
        assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="session")
def images(shapes, tmp_path_factory) -> list[str]:
    """More than a batch, of several sizes, and two that cannot be read."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "text.png").write_text("no image")
    good = [str(path) for path in sorted(shapes.rglob("*.png"))]
    return [*good[:3], str(folder / "text.png"), *good[3:], str(folder / "absent.jpg")]


def test_no_torch_and_not_large(installed):
    files = [path for path in installed.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < LARGEST
    python = str(installed / "bin" / "python")
    assert call(python, "-c", "import torch").returncode != 0
    assert call(python, "-c", "import bayescal").returncode != 0


def test_the_same_json(installed, exported, model, images):
    done = call(str(installed / "bin" / "bayescal-predict"), str(exported), *images)
    assert done.returncode == 0, done.stderr
    found, true = json.loads(done.stdout), run("predict", model, *images, "--json").json
    assert len(found) == len(true) == len(images)
    assert [entry["status"] for entry in found].count("unreadable") == 2
    for one, other in zip(found, true, strict=True):
        assert list(one) == list(other)
        for field, value in other.items():
            if isinstance(value, (float, dict)):
                assert one[field] == pytest.approx(value, abs=1e-4), field
            else:
                assert one[field] == value, field


SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from PIL import Image
from bayescal_runtime import BayescalError, load
classifier = load(sys.argv[1])
paths = [line for line in sys.argv[2:]]
pictures = [Image.open(path) for path in paths]
details = classifier.details(paths)
said = {
    "labels": classifier.predict(paths).tolist(),
    "selective": classifier.predict_selective(pictures).tolist(),
    "arrays": classifier.predict([np.asarray(picture.convert("RGB")) for picture in pictures]).tolist(),
    "probabilities": classifier.predict_proba(paths).tolist(),
    "unsure": details.unsure.tolist(),
    "none": classifier.predict_proba([]).shape,
    "names": [answer["image"] for answer in classifier.answers(pictures[:2])],
}
for wrong in ("one.png", ["absent.png"]):
    try:
        classifier.predict(wrong)
    except BayescalError as error:
        said[str(wrong)] = str(error)
print(json.dumps(said))
"""


def test_from_python(installed, exported, model, images):
    readable = [path for path in images if "shapes" in path]
    done = call(str(installed / "bin" / "python"), "-c", SCRIPT, str(exported), *readable)
    assert done.returncode == 0, done.stderr
    said, classifier = json.loads(done.stdout), bayescal.FewShotClassifier.load(model)
    assert said["labels"] == said["arrays"] == classifier.predict(readable).tolist()
    assert said["selective"] == classifier.predict_selective(readable).tolist()
    assert said["probabilities"] == pytest.approx(classifier.predict_proba(readable), abs=1e-4)
    assert said["none"] == [0, 2]
    assert said["names"] == ["image 0 of the list", "image 1 of the list"]
    assert "expected a list of images" in said["one.png"]
    assert "there is no such file" in said["['absent.png']"]


def test_errors_without_a_traceback(installed, model, exported, tmp_path):
    command = str(installed / "bin" / "bayescal-predict")
    for arguments, words in (
        ((str(model), "a.png"), "is not an exported model"),
        ((str(exported), str(tmp_path)), "no images found"),
    ):
        done = call(command, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_what_is_cut_out_needs_little(wheel, tmp_path):
    shutil.unpack_archive(wheel, tmp_path, "zip")
    allowed = {"bayescal_runtime", "numpy", "PIL", "onnxruntime", *sys.stdlib_module_names}
    optional = {"fsspec", "pillow_heif"}
    for file in tmp_path.glob("bayescal_runtime/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed | optional, file


def test_both_distributions_have_one_version():
    projects = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, RUNTIME)]
    assert projects[0]["version"] == projects[1]["version"]
    assert {name.partition(">")[0] for name in projects[1]["dependencies"]} == set(PACKAGES)


def test_a_source_distribution_carries_what_was_cut_out(tmp_path):
    done = call(
        sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path), cwd=RUNTIME
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (project,) = (tmp_path / "unpacked").iterdir()
    assert (project / "src" / "bayescal_runtime" / "_bayescal" / "export" / "reading.py").is_file()
    done = call(
        sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path), cwd=project
    )
    assert done.returncode == 0, done.stderr
    names = call(sys.executable, "-m", "zipfile", "-l", *map(str, tmp_path.glob("*.whl"))).stdout
    assert "bayescal_runtime/_bayescal/data/images.py" in names
