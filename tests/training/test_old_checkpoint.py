"""A checkpoint that version 0.1.0 wrote: it can be read, and trainings that differ from it do not continue it."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open

from bayescal.benchmark.bundle import load_bundle
from bayescal.errors import BayescalWarning
from bayescal.methods import get_method
from bayescal.training.loop import training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack, train_runs
from bayescal.training.state import CHECKPOINT_FORMAT, State
from old_files import OLD, expected


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_bundle(OLD / "shapes.bundle").problem


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [
        Run(
            run["config"],
            run["seed"],
            torch.tensor(run["train"]),
            {name: torch.tensor(images) for name, images in run["judged"].items()},
        )
        for run in expected()["checkpoint"]["runs"]
    ]


def test_its_tensors_are_read(problem, runs):
    then = expected()["checkpoint"]
    with safe_open(OLD / then["file"], framework="pt") as file:
        identity = file.metadata()["identity"]
    method, data, _ = bind_stack(get_method(then["method"]), problem, runs)
    state = State.fresh(method, method.init(training_samples(data)), data.eval_sets)
    state.load(OLD / then["file"], identity)
    assert state.epoch == then["epochs_done"]
    assert json.loads(then["metadata"]["probes"]) == state.gradient_norm_epochs
    for r, result in enumerate(then["results"]):
        for name, curve in result["curves"].items():
            found = [float(value[r]) for value in state.curves[name]]
            np.testing.assert_array_equal(found, curve[: state.epoch], err_msg=name)
        for name, norms in result["probes"].items():
            if name != "epoch":
                found = [float(value[r]) for value in state.gradient_norms[name]]
                np.testing.assert_array_equal(found, norms[: len(found)], err_msg=name)
    assert state.params.keys() == then["results"][0]["params"].keys()
    assert bool(state.alive.all())


def test_a_training_that_differs_starts_anew_and_says_so(problem, runs, tmp_path):
    """Views are shown in another order now, and L_orth is another term: a mixture of both would be neither."""
    then = expected()["checkpoint"]
    assert CHECKPOINT_FORMAT > 2
    shutil.copytree((OLD / then["file"]).parent, tmp_path / "checkpoints")
    done = []
    options = {"checkpoints": tmp_path / "checkpoints", "gradient_norms_every": then["options"]["probe_every"]}
    with pytest.warns(BayescalWarning, match=r"is of an older version of bayescal.* starts anew"):
        results = train_runs(then["method"], problem, runs, progress=done.append, **options)
    assert sum(done) == sum(run.config["epochs"] for run in runs)
    assert len(results[0].curves["ce"]) == runs[0].config["epochs"]
    assert (tmp_path / then["file"]).read_bytes() == (OLD / then["file"]).read_bytes()  # left alone
