"""The files of deploy/: the image's steps and its program run here, without what the image does not have."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from packaging.requirements import Requirement

from bayescal.cli.app import app
from bayescal.export.folder import FORMAT, FORMAT_VERSION, MODEL, write_folder
from bayescal.serving.metrics import Metrics
from command_line import refused, run
from servers import picture

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*Dockerfile"))
TOKEN = "a-token-that-nobody-guesses"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(word, the rest) of every instruction, comments and continuations resolved."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(dockerfile: Path, word: str) -> list[str]:
    return [rest.strip() for found, rest in instructions(dockerfile) if found == word]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_made_as_images_should_be(dockerfile):
    known = {"FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD", "VOLUME"}
    words = [word for word, _ in instructions(dockerfile)]
    assert set(words) <= known  # no ADD, which fetches and unpacks; no ARG, which keeps secrets
    for image in of(dockerfile, "FROM"):
        assert re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", image), "a version, and not the latest"
    user = words[::-1].index("USER")
    assert "RUN" not in words[::-1][:user], "what runs after USER would need rights"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", of(dockerfile, "USER")[-1]), "a number that is not root's"
    assert all("--no-cache-dir" in run for run in of(dockerfile, "RUN") if "pip install" in run)
    assert not re.search(r"TOKEN\s*=|PASSWORD", dockerfile.read_text().replace("-e BAYESCAL_TOKEN", ""))
    assert json.loads(of(dockerfile, "ENTRYPOINT")[0]), "the exec form, which passes SIGTERM on"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_not_ignored(dockerfile):
    allowed = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split()
    for copied in of(dockerfile, "COPY"):
        sources = [] if copied.startswith("--from") else copied.split()[:-1]
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed


def closure(names: list[str]) -> set[str]:
    """The top-level modules of these distributions and of all that they need."""
    modules, todo, seen = set(), list(names), set()
    while todo:
        name = todo.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for file in found.files or []:
            modules.add(file.parts[0].removesuffix(".py").partition(".")[0])
        for line in found.requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                todo.append(need.name)
    return modules


def tiny_export(folder: Path) -> Path:
    """A folder as `bayescal export` writes it, whose graph answers with the mean colour."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "axes"], ["colour"], keepdims=0),
        helper.make_node("Softmax", ["colour"], ["probabilities"], axis=1),
        helper.make_node("ReduceMax", ["colour", "last"], ["entropy"], keepdims=0),
        *(
            helper.make_node("Identity", ["entropy"], [n])
            for n in ("mutual_information", "disagreement", "familiarity")
        ),
        helper.make_node("ArgMin", ["colour"], ["environment"], axis=1, keepdims=0),
    ]
    one = ("entropy", "mutual_information", "disagreement", "familiarity")
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", "H", "W", 3])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 3]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in one),
            helper.make_tensor_value_info("environment", TensorProto.INT64, ["N"]),
        ],
        [
            onnx.numpy_helper.from_array(np.array([1, 2]), "axes"),
            onnx.numpy_helper.from_array(np.array([1]), "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = model.SerializeToString()
    how = {"size": 4, "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic", "resize_mode": "shortest"}
    about = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "classes": ["red", "green", "blue"],
        "class_words": ["red", "green", "blue"], "environments": ["a", "b", "c"], "threshold": 0.5,
        "unfamiliar_below": None, "temperature": 1.0, "expected": None, "method": "colours", "preprocessing": how,
        "backbone": "none", "fingerprint": "0" * 20, "precision": "float32", "version": "0",
        "files": {MODEL: {"bytes": len(file), "sha256": hashlib.sha256(file).hexdigest()}},
    }  # fmt: skip
    write_folder(folder, file, about)
    return folder


ONLY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if not (top in allowed or top in sys.stdlib_module_names or top.startswith("_sysconfigdata")):
            raise ModuleNotFoundError(f"the image has no {{top}}", name=top)

allowed = set({allowed!r})
sys.meta_path.insert(0, Absent())
sys.argv = {command!r}
from bayescal.cli import main
main()
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Iterator[tuple[Path, subprocess.Popen, str]]:
    """The steps of deploy/Dockerfile in a folder, and its program running, on a free port of loopback.

    COPY is done; packages are not installed anew, but those that the image would not have cannot be imported.
    """
    base, dockerfile = tmp_path_factory.mktemp("image"), DEPLOY / "Dockerfile"
    for copied in of(dockerfile, "COPY"):
        *sources, target = copied.split()
        for source in [] if copied.startswith("--from") else sources:
            here, there = ROOT / source, base / target / ("" if (ROOT / source).is_dir() else source)
            there.parent.mkdir(parents=True, exist_ok=True)
            ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")  # as RUN find … -delete
            shutil.copytree(here, there, ignore=ignored) if here.is_dir() else shutil.copyfile(here, there)
    installs = [
        shlex.split(line.partition("pip install")[2]) for line in of(dockerfile, "RUN") if "pip install" in line
    ]
    names = [word for word in installs[0] if not word.startswith("-") and not word.endswith(".lock")]
    command = [word for word in json.loads(of(dockerfile, "ENTRYPOINT")[0]) if not word.endswith("bin/bayescal")]
    command = ["bayescal", *(str(tiny_export(base / "model")) if word == "/model" else word for word in command)]
    command[command.index("--port") + 1] = "0"
    code = ONLY.format(allowed=sorted(closure(names) | {"bayescal"}), command=command)
    environment = {
        **os.environ,
        "PYTHONPATH": str(base / "src"),
        "BAYESCAL_TOKEN": TOKEN,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment, cwd=base / "model"
    )
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"answers at http://0\.0\.0\.0:(\d+)/", line):
                break
        else:
            pytest.fail(said)
        yield base, process, f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(30)


def test_the_image_answers_with_what_is_in_it(image):
    _, _, address = image
    files = {"images": ("a.png", picture((5, 250, 5)))}
    assert httpx.post(f"{address}/v1/predict", files=files).status_code == 401
    answer = httpx.post(f"{address}/v1/predict", files=files, headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert answer["answers"][0]["class"] == "green"
    about = httpx.get(f"{address}/v1/model", headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert (about["engine"], about["feature_width"]) == ("onnx", None)


def test_the_health_check_of_the_image_says_whether_it_answers(image):
    _, _, address = image
    check = json.loads(of(DEPLOY / "Dockerfile", "HEALTHCHECK")[0].partition("CMD ")[2])
    code = check[-1].replace("http://127.0.0.1:8000", address)
    assert code != check[-1]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    dead = check[-1].replace(":8000", ":9")
    assert subprocess.run([sys.executable, "-c", dead], capture_output=True).returncode != 0


def test_the_image_writes_nothing(image):
    """So that it can run on a read-only file system."""
    base, _, _ = image
    assert sorted(path.name for path in base.iterdir()) == [
        "LICENSE", "LICENSES", "NOTICE", "README.md", "model", "pyproject.toml", "requirements.lock", "src",
    ]  # fmt: skip
    assert not list((base / "src").rglob("__pycache__"))


def test_an_exported_model_takes_no_features(tmp_path):
    from bayescal.serving.engine import open_engine
    from servers import client
    from servers import refused as problem

    server = client(open_engine(tiny_export(tmp_path / "exported")))
    problem(server.post(json={"features": [[1.0, 2.0]]}), 422, "takes no features")
    answers = server.post(files={"images": ("a.png", picture((5, 5, 250)))}).json()["answers"]
    assert [a["class"] for a in answers] == ["blue"]


def test_an_engine_that_does_not_fit_the_folder_is_refused(tmp_path):
    exported = tiny_export(tmp_path / "exported")
    refused(run("serve", exported, "--port", 0, "--engine", "torch"), "was exported to ONNX", "leave --engine out")
    refused(run("serve", tmp_path, "--port", 0, "--engine", "onnx"), "no model.onnx", "bayescal export")
    refused(run("serve", exported, "--port", 0, "--engine", "jax"), "expected torch or onnx")
    refused(run("serve", exported, "--host", "0.0.0.0", "--port", 0), "expected a token")
    refused(run("serve", exported, "--max-upload", "a lot"), "expected a size such as 20MB")


def test_every_number_that_is_drawn_or_watched_is_counted():
    counted = set(re.findall(r"^# TYPE (bayescal_\w+)", Metrics().text().decode(), flags=re.M))
    for file in (DEPLOY / "grafana" / "bayescal.json", DEPLOY / "alerts.yml"):
        named = set(re.findall(r"bayescal_\w+", file.read_text()))
        assert named
        assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= counted
    panels = json.loads((DEPLOY / "grafana" / "bayescal.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 6


def test_the_services_fit_together():
    compose = (DEPLOY / "compose.yaml").read_text()
    for file in re.findall(r"- \./([\w./-]+):", compose):
        assert (DEPLOY / file).exists(), file
    assert "read_only: true" in compose
    assert not re.search(r'ports: \["(?!127\.)', compose), "ports are given to loopback alone"
    assert "bayescal:8000" in (DEPLOY / "prometheus.yml").read_text()
    assert {command.name or command.callback.__name__ for command in app.registered_commands} >= {
        "serve",
        "export",
        "fit",
    }
