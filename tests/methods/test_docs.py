"""docs/adding-a-method.md and the README's table of methods are true."""

import re
import textwrap
from pathlib import Path

import pytest
import torch

import tiny
from bayescal import methods
from bayescal.methods import method_names
from bayescal.space import default_config
from bayescal.stacks import train_runs

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """
import torch
from torch import Tensor
from bayescal import objectives, rng
from bayescal.methods.base import COMMON, Batch, Method, Params, Samples, Terms
from bayescal.optim import per_row
from bayescal.prompts import normalized
from bayescal.space import log10_uniform, number
"""


@pytest.fixture
def documented_method(monkeypatch):
    """The class printed in the document, registered under its name."""
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    block = page[page.index('    """Linear probe:') : page.index("    # src/bayescal/methods/__init__.py")]
    namespace: dict = {}
    exec(IMPORTS + textwrap.dedent(block), namespace)
    method = namespace["LinearProbe"]
    monkeypatch.setattr(methods, "REGISTRY", {**methods.REGISTRY, method.name: "linear_probe.LinearProbe"})
    for module in ("bayescal.stacks", "bayescal.methods"):
        real = methods.get_method
        monkeypatch.setattr(
            f"{module}.get_method", lambda name, real=real: method if name == method.name else real(name)
        )
    return method


def test_documented_method_trains_and_stacks(documented_method):
    problem = tiny.tiny_problem()
    config = default_config(documented_method.space, tiny.Defaults, epochs=30)
    runs = [tiny.tiny_run({**config, "learning_rate": rate}, seed) for seed, rate in ((1, 0.5), (2, 0.2))]
    together = train_runs(documented_method.name, problem, runs)
    for run, row in zip(runs, together, strict=True):
        alone = train_runs(documented_method.name, problem, [run])[0]
        assert torch.allclose(row.params["weight"], alone.params["weight"], atol=1e-5)
        assert row.curves["val"][-1] > 0.9


def test_readme_lists_every_method():
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "README.md").read_text(), flags=re.M)
    assert listed == method_names()
