"""A method and a data set in a distribution of their own: built, installed and used, without a line here.

The distribution is `tests/outside/kgcoop`: KgCoOp (Yao et al., CVPR 2023), declared as entry points.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bayescal.estimator.artifact import read_artifact
from benches import SHOTS, VAL_SHOTS
from command_line import Result, refused, run

SOURCE = Path(__file__).parent / "kgcoop"
TESTS = Path(__file__).parents[1]

# The command line in a process of its own, with short trainings: a list of commands in, how each ended out.
DRIVER = """
import json, sys
from benches import short_trainings
from command_line import run
with short_trainings():
    ended = [vars(run(*command)) for command in json.loads(sys.argv[1])]
print(json.dumps(ended))
"""

pytestmark = pytest.mark.xdist_group("outside")


def call(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder of installed packages with the distribution in it: built by its backend, put there by an installer."""
    base = tmp_path_factory.mktemp("outside")
    project = base / "project"
    shutil.copytree(SOURCE, project, ignore=shutil.ignore_patterns("__pycache__"))
    call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(base), cwd=project)
    (wheel,) = base.glob("*.whl")
    uv = shutil.which("uv")
    installer = [uv, "pip", "install", "--offline", "--python", sys.executable] if uv else [sys.executable, "-m", "pip"]
    arguments = [*([] if uv else ["install"]), "--no-index", "--no-deps", "--target", str(base / "site"), str(wheel)]
    call(*installer, *arguments, cwd=base)
    return base / "site"


@pytest.fixture(scope="module")
def ended(site, pictures, shapes, tmp_path_factory) -> tuple[dict[str, Result], Path]:
    """How `fit`, `predict`, `bench`, … ended where the distribution is installed, and the folder they wrote into."""
    base = tmp_path_factory.mktemp("used")
    image = str(next(shapes.rglob("*.png")))
    bench = ["--quick", "--trials", 2, "--shots", SHOTS, "--val-shots", VAL_SHOTS, "--quiet", "-o", base / "results"]
    data = ["--data", f"DrawnThings={pictures}"]
    commands = {
        "fit": ["fit", shapes, "-o", base / "model", "--method", "kgcoop", "--set", "epochs=2", "--set", "lambda_kg=4"],
        "predict": ["predict", base / "model", image, "--json"],
        "bench": ["bench", "main", *data, "--methods", "coop,kgcoop", *bench],
        "again": ["bench", "main", *data, "--methods", "kgcoop:KgCoOp,coop", *bench, "--dry-run"],
        "adapters": ["bench", "adapters", *data, "--methods", "kgcoop", *bench],
        "report": ["report", base / "results", "-o", base / "report.html"],
        "methods": ["methods"],
        "data": ["data", "list"],
    }
    given = json.dumps([[str(word) for word in command] for command in commands.values()])
    path = os.pathsep.join([str(site), str(TESTS), *sys.path])
    out = call(sys.executable, "-c", DRIVER, given, cwd=TESTS, PYTHONPATH=path, COLUMNS="300")
    results = [Result(**one) for one in json.loads(out.splitlines()[-1])]
    return dict(zip(commands, results, strict=True)), base


def test_the_distribution_was_built_and_installed(site):
    assert (site / "kgcoop" / "__init__.py").read_text() == (SOURCE / "kgcoop" / "__init__.py").read_text()
    (declared,) = site.glob("bayescal_kgcoop-1.0.dist-info/entry_points.txt")
    assert "kgcoop = kgcoop:KgCoOp" in declared.read_text()


def test_every_command_works_with_it(ended):
    for name, result in ended[0].items():
        assert result.code == 0, (name, result.err)


def test_the_model_names_it(ended):
    config = read_artifact(ended[1] / "model")[1]
    assert config["method"] == "kgcoop"
    assert config["method_from"] == {"class": "kgcoop:KgCoOp", "distribution": "bayescal-kgcoop 1.0"}
    assert (config["config"]["lambda_kg"], config["config"]["template"]) == (4, "a photo of a {}.")
    assert "kgcoop on mini" in ended[0]["fit"].out
    assert set(config["training"]["curves"]) >= {"ce", "kg", "total", "val"}  # its own term is a curve
    (answer,) = ended[0]["predict"].json
    assert answer["status"] == "ok"


def test_search_records_and_report_have_it(ended):
    section = json.loads((ended[1] / "results" / "sections" / "main.json").read_text())
    rows = {row["label"]: row["cells"] for row in section["tables"][0]["rows"]}
    assert list(rows) == ["CoOp", "KgCoOp"]
    assert rows["KgCoOp"]["drawn-things"]["mean"] > 0
    searched = [panel["title"] for f in section["figures"] if f["kind"] == "scatter" for panel in f["data"]["panels"]]
    assert "lambda_kg" in searched
    assert "KgCoOp" in (ended[1] / "report.html").read_text()
    # By its class it is the same method: every run is recorded already.
    line = next(line for line in ended[0]["again"].out.splitlines() if "KgCoOp" in line)
    runs, missing = line.split("KgCoOp")[1].split()[:2]
    assert int(runs) > 0
    assert int(missing) == 0


def test_it_is_listed(ended):
    assert "kgcoop" in ended[0]["methods"].out
    assert "Knowledge-guided Context Optimization" in ended[0]["methods"].out
    assert "drawn-things" in ended[0]["data"].out


def test_without_the_distribution_the_model_says_what_to_install(ended, shapes):
    image = next(shapes.rglob("*.png"))
    said = ("made with the method 'kgcoop'", "not part of bayescal", "pip install bayescal-kgcoop==1.0")
    refused(run("predict", ended[1] / "model", image), *said)
    refused(run("fit", shapes, "-o", ended[1] / "other", "--method", "kgcoop"), "there is no method 'kgcoop'")
