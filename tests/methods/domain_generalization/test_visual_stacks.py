"""A stack of visual runs equals the same runs one by one, through the whole training loop."""

import pytest
import torch
from visual_setup import METHODS

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config, draw_config
from bayescal.training.stack import train_runs


def runs_of(name: str):
    """Three runs that differ in seed, training environments, images and every number."""
    space = get_method(name).space
    small = {"epochs": 3, "batch_size": 8}
    configs = [default_config(space, tiny.Defaults, **small)]
    for trial in (1, 2):
        drawn = draw_config(space, tiny.Defaults, trial)
        numbers = {n: v for n, v in drawn.items() if space[n].is_number}
        configs.append(default_config(space, tiny.Defaults, **{**numbers, **small}))
    if "anneal_share" in configs[1]:  # inside the training, so that the change and its reset are part of the comparison
        configs[1]["anneal_share"] = 0.45  # step 4 of 9
    where = [(0, 1), (1, 2), (0, 1)]
    return [tiny.tiny_run(c, s, e) for c, s, e in zip(configs, (1, 2, 3), where, strict=True)]


@pytest.mark.parametrize("name", METHODS)
def test_stack_equals_single_runs(name):
    problem = tiny.tiny_problem()
    runs = runs_of(name)
    together = train_runs(name, problem, runs)
    for run, stacked in zip(runs, together, strict=True):
        (alone,) = train_runs(name, problem, [run])
        for key, value in alone.params.items():
            torch.testing.assert_close(stacked.params[key], value, rtol=1e-5, atol=1e-5, msg=f"{name}: {key}")
        assert stacked.curves["val"] == alone.curves["val"]
        assert stacked.stopped is None


@pytest.mark.parametrize("name", METHODS)
def test_default_training_learns_the_tiny_problem(name):
    problem = tiny.tiny_problem()
    config = default_config(get_method(name).space, tiny.Defaults, batch_size=16)
    (result,) = train_runs(name, problem, [tiny.tiny_run({**config, "epochs": 30}, 1, n=36)])
    probs = predict(result.bind(problem), result.params, problem.features).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones(1, 120))
    assert result.curves["val"][-1] > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_one_training_environment_is_enough(name):
    config = default_config(get_method(name).space, tiny.Defaults, epochs=2)
    (result,) = train_runs(name, tiny.tiny_problem(), [tiny.tiny_run(config, 1, (0,))])
    assert result.stopped is None
    assert all(value.isfinite().all() for value in result.params.values())


@pytest.mark.parametrize("name", METHODS)
def test_other_classes_are_refused(name):
    problem = tiny.tiny_problem()
    config = default_config(get_method(name).space, tiny.Defaults, epochs=1)
    (result,) = train_runs(name, problem, [tiny.tiny_run(config, 1)])
    with pytest.raises(MethodError, match="knows the 3 classes it was trained with, not 2"):
        predict(result.bind(problem, classes=("photo", "sketch")), result.params, problem.features)
