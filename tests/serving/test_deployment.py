"""The files of deploy/, as far as they can be checked without Docker; test_image.py does the steps of the images."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile import instructions, of
from tiny_export import tiny_export

from bayescal.cli.app import app
from bayescal.serving.engine import open_engine
from bayescal.serving.metrics import Metrics
from command_line import refused, run
from servers import client, picture
from servers import refused as problem

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*Dockerfile"))


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
    assert not re.search(r"\b(sudo|curl|wget|apt-get|chmod 777)\b", dockerfile.read_text())
    serves = "serve" in json.loads(of(dockerfile, "ENTRYPOINT")[0])
    assert len(of(dockerfile, "HEALTHCHECK")) == serves, "who serves says whether it can answer"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_not_ignored(dockerfile):
    allowed = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split()
    for copied in of(dockerfile, "COPY"):
        sources = [] if copied.startswith("--from") else copied.split()[:-1]
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed


def docker(*words: str, seconds: int) -> subprocess.CompletedProcess:
    return subprocess.run(["docker", *words], capture_output=True, text=True, cwd=ROOT, timeout=seconds)


@pytest.fixture(scope="module")
def engine() -> None:
    if not shutil.which("docker") or docker("info", seconds=60).returncode != 0:
        pytest.skip("no Docker engine answers here: test_image.py does the steps of the images instead")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_dockers_own_checks_find_nothing(engine, dockerfile):
    done = docker("build", "--check", "-f", str(dockerfile), ".", seconds=300)
    if "unknown flag" in done.stderr or re.search(r"dial tcp|lookup .* on|no such host", done.stderr):
        pytest.skip(f"this Docker engine cannot check: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_docker_builds_the_image(engine):
    """It fetches the base image and packages, so it is skipped where nothing can be fetched."""
    done = docker("build", "-f", "deploy/Dockerfile", "-t", "bayescal-serve:test", ".", seconds=1200)
    if re.search(r"dial tcp|lookup .* on|no such host|No matching distribution|Temporary failure", done.stderr):
        pytest.skip(f"nothing can be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    how = ("--rm", "--read-only", "--cap-drop", "ALL", "--entrypoint", "/opt/bayescal/bin/bayescal")
    said = docker("run", *how, "bayescal-serve:test", "--version", seconds=120)
    assert said.returncode == 0, said.stderr


def test_an_exported_model_takes_no_features(tmp_path):
    server = client(open_engine(tiny_export(tmp_path / "exported")))
    problem(server.post(json={"features": [[1.0, 2.0]]}), 422, "takes no features")
    answers = server.post(files={"images": ("a.png", picture((5, 5, 250)))}).json()["answers"]
    assert [a["class"] for a in answers] == ["blue"]


WITHOUT_TORCH = """
import sys
from bayescal.cli import main
from bayescal.serving import run
from servers import Client, picture

def ask(app, *_):
    server = Client(app)
    answers = [server.post(files={"images": ("a.png", picture())}), server.get("/v1/model"), server.get("/")]
    assert [answer.status_code for answer in answers] == [200] * 3, answers
    assert "torch" not in sys.modules, "torch was loaded before anybody opened the page"
    print(server.get("/page/state").status_code, "torch" in sys.modules)

run.serve = ask
sys.argv = ["bayescal", "serve", sys.argv[1], "--port", "0"]
main()
"""


def test_the_server_of_an_exported_model_loads_torch_with_the_page(tmp_path):
    exported = tiny_export(tmp_path / "exported")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(exported)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True", done.stdout


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


def test_the_first_failure_is_an_increase():
    """Prometheus sees none in a series that begins with it."""
    metrics = Metrics()
    asked = re.search(r"alert: ServerFails\n +expr: increase\((\S+)\[", (DEPLOY / "alerts.yml").read_text())
    assert asked is not None
    assert f"\n{asked[1]} 0.0\n" in metrics.text().decode()
    metrics.request("/v1/predict", 503, 0.1)
    metrics.request("/v1/predict", 500, 0.1)
    assert f"\n{asked[1]} 1.0\n" in metrics.text().decode()


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
