"""docs/adding-a-method.md and the README's table of methods are true."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import outside_methods
import tiny
from bayescal import FewShotClassifier
from bayescal.methods import method_reference
from bayescal.methods.contract import Method
from bayescal.methods.describe import HEADER, methods_table, source
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs
from command_line import refused, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.xdist_group("command-line")


MODULE, SCRIPT = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the first block of the page in it, as it is printed there."""
    (tmp_path / "my_method.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def linear_probe(folder, monkeypatch) -> type[Method]:
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("my_method").LinearProbe
    del sys.modules["my_method"]
    outside_methods.forget()


def bayescal(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in a folder; as the console script has it, the folder itself is not on the path (-P)."""
    script = folder / "bin" / "bayescal"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -c "from bayescal.cli import main; main()" "$@"\n')
    script.chmod(0o755)
    known = os.environ.get("PYTHONPATH", "")
    command = command.replace("PYTHONPATH=.", f'PYTHONPATH=".:{known}"')  # and what this test is run with
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=folder, env={**os.environ, "PATH": path}
    )


FIT, BENCH, PREDICT = re.findall(r"^\$ (.*?)(?:  +#.*)?$", PAGE, flags=re.M)


def lay_out(folder: Path, shapes: Path) -> None:
    """The images that the page speaks of."""
    shutil.copytree(shapes, folder / "photos")
    (folder / "new").mkdir()
    shutil.copy(next(shapes.rglob("*.png")), folder / "new" / "a.png")


def test_fit_and_predict_do_what_the_page_says(folder, shapes):
    lay_out(folder, shapes)
    done = bayescal(folder, FIT)
    assert done.returncode == 0, done.stderr
    assert "my_method:LinearProbe on mini" in done.stdout
    assert "PYTHONPATH=. bayescal predict model" in done.stdout
    answered = bayescal(folder, PREDICT)
    assert answered.returncode == 0, answered.stderr
    assert "new/a.png" in answered.stdout
    refused(run("predict", folder / "model", folder / "new" / "a.png"), "'my_method:LinearProbe'", "PYTHONPATH=FOLDER")


def test_bench_and_the_python_block_do_what_the_page_says(folder, shapes, linear_probe, monkeypatch, capsys):
    lay_out(folder, shapes)
    monkeypatch.chdir(folder)
    benched = run(*shlex.split(BENCH)[1:], "--shots", 2, "--val-shots", 1)  # there are few images here
    assert benched.code == 0, benched.err
    assert "Linear probe" in benched.out
    exec(compile(SCRIPT, "adding-a-method.md", "exec"), {})
    answer, *accuracies = capsys.readouterr().out.splitlines()
    assert any(name in answer for name in ("dog", "house"))
    assert [0 <= float(accuracy) <= 1 for accuracy in accuracies] == [True] * 3


def test_the_documented_class_trains_and_stacks(linear_probe):
    problem = tiny.tiny_problem()
    config = default_config(linear_probe.space, tiny.Defaults, epochs=30)
    runs = [tiny.tiny_run({**config, "learning_rate": rate}, seed) for seed, rate in ((1, 0.5), (2, 0.2))]
    together = train_runs(linear_probe, problem, runs)
    for run_, row in zip(runs, together, strict=True):
        alone = train_runs("my_method:LinearProbe", problem, [run_])[0]
        assert torch.allclose(row.params["weight"], alone.params["weight"], atol=1e-5)
        assert row.curves["val"][-1] > 0.9


def test_the_documented_class_is_a_classifiers_method(linear_probe, tmp_path):
    images = [np.full((8, 8, 3), 25 * i, dtype=np.uint8) for i in range(8)]
    classifier = FewShotClassifier(method=linear_probe, cache=tmp_path / "cache", options={"epochs": 2})
    classifier.fit(images, ["dog", "cat"] * 4, ["photo", "photo", "sketch", "sketch"] * 2).save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model", cache=tmp_path / "cache")
    assert loaded.method == method_reference(linear_probe) == "my_method:LinearProbe"
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))


def test_the_page_names_every_attribute_of_the_contract():
    table = PAGE[PAGE.index("| attribute | default | meaning |") : PAGE.index("## What else the contract offers")]
    named = re.findall(r"`([a-z_]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    assert set(named) == {*Method.__annotations__, "schedule"}
    rest = PAGE[PAGE.index("## What else the contract offers") :]
    offered = {"gradients", "measured_parameters", "scale_parameters", "finish", "resets", "run_bytes", "decays"}
    assert all(f"`{name}" in rest and hasattr(Method, name) for name in offered)
    for line in table.strip().splitlines()[2:]:
        names, default = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:3])
        for name, value in zip(names, default, strict=False):
            assert repr(getattr(Method, name)) == value


def test_the_readmes_table_is_what_the_classes_say():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index(HEADER) :].split("\n\n")[0]
    assert table == methods_table()  # `bayescal methods --markdown` prints it
    assert run("methods", "--markdown").out == methods_table() + "\n"


@pytest.mark.parametrize(
    ("citation", "short"),
    [
        ("Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022", "Zhou et al. 2022"),
        (
            "Vapnik, Statistics, 1998; Gulrajani & Lopez-Paz, In Search, ICLR 2021",
            "Gulrajani & Lopez-Paz 2021",
        ),
        ("Arjovsky et al., Invariant Risk Minimization, arXiv:1907.02893, 2019", "Arjovsky et al. 2019"),
        ("Nobody, Nothing", "Nobody"),
    ],
)
def test_a_citation_is_cut_to_authors_and_year(citation, short):
    assert source(citation) == short
