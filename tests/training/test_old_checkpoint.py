"""A checkpoint that version 0.1.0 wrote: nothing continues it, and it is left alone."""

import shutil

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


def test_a_checkpoint_without_a_checksum_is_not_continued_and_says_so(problem, runs):
    then = expected()["checkpoint"]
    with safe_open(OLD / then["file"], framework="pt") as file:
        identity = file.metadata()["identity"]
    method, data, _ = bind_stack(get_method(then["method"]), problem, runs)
    state = State.fresh(method, method.init(training_samples(data)), data.eval_sets)
    with pytest.warns(BayescalWarning, match=r"is not continued, the training starts anew: it has no checksum"):
        state.load(OLD / then["file"], identity)
    assert state.epoch == 0


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
