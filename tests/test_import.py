"""What importing costs: `import bayescal` next to nothing, training torch alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ["torch", "torchvision", "open_clip", "sklearn", "matplotlib", "optuna", "plotly", "rich", "numpy", "PIL"]
TESTS = Path(__file__).parent


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(*modules: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has after importing these modules."""
    code = f"import sys, {', '.join(modules)}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return set(fresh(code).split())


def test_the_package_imports_nothing_heavy():
    assert (
        imported(
            "bayescal",
            "bayescal.errors",
            "bayescal.methods",
            "bayescal.methods.hyperparameters",
            "bayescal.estimator.artifact",
        )
        == set()
    )


def test_the_command_line_starts_without_torch():
    assert not imported("bayescal.cli") & {"torch", "sklearn", "open_clip", "matplotlib"}


def test_the_core_needs_torch_alone():
    core = (
        "bayescal.training.stack",
        "bayescal.estimator.predictor",
        "bayescal.evaluation.metrics",
        "bayescal.backbones",
        "bayescal.text.prompt_tree",
    )
    assert imported(*core) <= {"torch", "numpy"}  # torch itself imports numpy


def test_looking_a_name_up_imports_its_own_part_only():
    assert imported("bayescal.data") <= {"numpy", "PIL"}


def test_training_runs_where_only_torch_is_installed():
    absent = ["open_clip", "torchvision", "sklearn", "PIL", "matplotlib", "rich", "typer", "scipy"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))  # None: importing it is an ImportError
import tiny
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs
for name in ("coop", "cal", "bayes-cal", "clip"):
    run = tiny.tiny_run(default_config(get_method(name).space, tiny.Defaults), 1)
    print(name, train_runs(name, tiny.tiny_problem(), [run])[0].stopped)
"""
    assert fresh(code).split() == ["coop", "None", "cal", "None", "bayes-cal", "None", "clip", "None"]


def test_public_names_are_listed_and_each_resolves():
    code = """
import json, bayescal
names = dir(bayescal)
from bayescal import *
print(json.dumps([names, bayescal.__all__, [type(globals()[name]).__name__ for name in names]]))
"""
    names, public, kinds = json.loads(fresh(code))
    assert names == sorted(public)
    assert {"FewShotClassifier", "load_backbone", "Manifest", "FeatureBank", "BayescalError", "__version__"} <= set(
        names
    )
    assert dict(zip(names, kinds, strict=True))["load_backbone"] == "function"
    assert dict(zip(names, kinds, strict=True))["BayescalError"] == "type"


def test_an_unknown_name_is_an_attribute_error():
    import bayescal

    with pytest.raises(AttributeError, match="no attribute 'FewShotClasifier'"):
        bayescal.FewShotClasifier  # noqa: B018
    with pytest.raises(ImportError):
        from bayescal import nothing  # noqa: F401


def test_importing_is_quick():
    code = "import time; t = time.perf_counter(); import bayescal; print(time.perf_counter() - t)"
    assert min(float(fresh(code)) for _ in range(3)) < 0.5
