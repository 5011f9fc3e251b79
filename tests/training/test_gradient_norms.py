"""Gradients of the loss terms: norms of the true gradients on φ_C, and a training that does not notice them."""

import json
from dataclasses import replace

import pytest
import torch

import tiny
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Method, Runs
from bayescal.methods.hyperparameters import default_config
from bayescal.training.gradient_norms import term_gradient_norms
from bayescal.training.loop import train
from bayescal.training.problem import Problem
from bayescal.training.stack import stack_data, train_runs

F64 = torch.float64
FAMILY = ("cal", "bayes-cal", "cal-lv", "bayes-cal-lv", "cal-w2v", "bayes-cal-w2v")
TERMS = {"ce", "env", "irm", "orth"}
PHI_C = {  # the learned parameters of the class branch's mean
    "coop": ("context",),
    **dict.fromkeys(("cal", "bayes-cal"), ("class.context",)),
    **dict.fromkeys(("cal-lv", "bayes-cal-lv"), ("class.vectors",)),
    **dict.fromkeys(
        ("cal-w2v", "bayes-cal-w2v"),
        ("class.hidden.weight", "class.hidden.bias", "class.out.weight", "class.out.bias"),
    ),
}


@pytest.fixture(scope="module")
def word_vectors(tmp_path_factory) -> str:
    return tiny.tiny_word_vectors(tmp_path_factory.mktemp("words"))


@pytest.fixture
def make_config(word_vectors):
    """A method's defaults on the tiny tower, and a file of word vectors where the method needs one."""

    def make(name: str, **options) -> dict:
        space = get_method(name).space
        needed = {"word_vectors": word_vectors} if "word_vectors" in space else {}
        return default_config(space, tiny.Defaults, **needed, **{k: v for k, v in options.items() if k in space})

    return make


def bind(name: str, config: dict, seeds: list[int], problem: Problem) -> Method:
    method = get_method(name)
    return method(problem.task([tiny.ENVIRONMENTS]), Runs.stack(method.space, [config] * len(seeds), seeds))


def away_from_start(params: dict, frozen: tuple) -> dict:
    """At the start the mean is the prior's and KL has no gradient; a little off, every term has one."""
    ripple = lambda v: 0.05 * torch.arange(v.numel()).to(v).view_as(v).sin()  # noqa: E731
    return {name: value if name in frozen else value + ripple(value) for name, value in params.items()}


def batch_of(problem: Problem, rows: list[int]) -> Batch:
    """24 images, others in each row."""
    images = torch.stack([torch.arange(24) + 7 * r for r in rows])
    return Batch(problem.features[images], problem.labels[images], problem.environments[images], 24, 5)


@pytest.mark.parametrize("name", ["coop", *FAMILY])
def test_norms_are_those_of_autograd_on_single_runs(name, make_config):
    problem = tiny.tiny_problem(dtype=F64)
    config, seeds = make_config(name, train_samples=2), [3, 4]
    method = bind(name, config, seeds, problem)
    params = away_from_start(method.init(None), method.frozen)
    norms = term_gradient_norms(method, params, batch_of(problem, [0, 1]))
    assert set(norms) == ({"ce"} if name == "coop" else TERMS | ({"kl"} if "bayes" in name else set()))
    for r, seed in enumerate(seeds):
        alone = bind(name, config, [seed], problem)
        own = {n: v[r : r + 1].clone() for n, v in params.items()}
        for term, values in norms.items():
            leaves = {n: v.clone().requires_grad_() for n, v in own.items() if n not in method.frozen}
            alone.loss({**own, **leaves}, batch_of(problem, [r]))[term].backward()
            squares = [leaves[n].grad.square().sum() for n in PHI_C[name] if leaves[n].grad is not None]
            expected = float(sum(squares)) ** 0.5 if squares else 0.0
            assert float(values[r]) == pytest.approx(expected, rel=1e-10, abs=1e-14), term
            if term == "env":
                assert float(values[r]) == 0.0  # exactly: L_E reaches φ_C through L_orth alone
            else:
                assert float(values[r]) > 1e-6, term


def test_kl_is_measured_without_its_weight():
    """∇_μ KL = (μ − μ_p)/σ_p² whatever β is, and the environment branch's KL is not in it."""
    problem = tiny.tiny_problem(dtype=F64)
    config = default_config(get_method("bayes-cal").space, tiny.Defaults, beta=1e-3)
    method = bind("bayes-cal", config, [3], problem)
    start = method.init(None)
    params = away_from_start(start, ())
    assert float(term_gradient_norms(method, start, batch_of(problem, [0]))["kl"]) == 0.0
    shift = (params["class.context"] - start["class.context"]).norm()
    norm = term_gradient_norms(method, params, batch_of(problem, [0]))["kl"]
    assert float(norm) == pytest.approx(float(shift) / tiny.Posterior.prior_scale**2, rel=1e-6)


@pytest.mark.parametrize("name", ["cocoop", "erm", "clip-adapter"])
def test_methods_without_a_class_branch_are_not_measured(name):
    problem = tiny.tiny_problem()
    config = default_config(get_method(name).space, tiny.Defaults, epochs=1)
    (result,) = train_runs(name, problem, [tiny.tiny_run(config, 1)], gradient_norms_every=1)
    assert result.gradient_norms == {}


@pytest.mark.parametrize("name", ["coop", "cal", "bayes-cal", "bayes-cal-lv", "bayes-cal-w2v"])
def test_probing_changes_no_bit_of_the_training(name, make_config):
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(make_config(name), seed) for seed in (1, 2)]
    without, with_norms = (train_runs(name, problem, runs, gradient_norms_every=every) for every in (0, 1))
    for plain, measured_parameters in zip(without, with_norms, strict=True):
        assert plain.gradient_norms == {} != measured_parameters.gradient_norms
        assert all(torch.equal(plain.params[n], measured_parameters.params[n]) for n in plain.params)
        assert plain.curves == measured_parameters.curves
        assert plain.best_epoch == measured_parameters.best_epoch


def test_norms_are_taken_at_the_first_batch_before_its_step():
    """Each norm equals one made by hand, from the parameters after that many epochs and the batch of that step."""
    problem = tiny.tiny_problem(dtype=F64)
    config = default_config(get_method("bayes-cal").space, tiny.Defaults, epochs=5)
    run = tiny.tiny_run(config, 2)
    data = stack_data(problem, [run], [[0, 1]])
    method = get_method("bayes-cal")
    bound = method(problem.task([tiny.ENVIRONMENTS[:2]]), Runs.stack(method.space, [config], [2]))
    batches, params_at = {}, {}
    real = bound.gradients

    def gradients(params, batch):
        step = int(batch.step)  # a number of its own: the training counts on
        batches[step] = replace(batch, step=step)
        return real(params, batch)

    bound.gradients = gradients
    keep = lambda epoch, params: params_at.update({epoch: {n: v.clone() for n, v in params.items()}})  # noqa: E731
    trained = train(bound, data, observe=keep, gradient_norms_every=2)
    assert trained.gradient_norm_epochs == [0, 2, 4]  # the first and every second after it
    for i, epoch in enumerate(trained.gradient_norm_epochs):
        expected = term_gradient_norms(bound, params_at[epoch], batches[epoch * 3])  # 18 images in batches of 8
        assert set(expected) == set(trained.gradient_norms) == TERMS | {"kl"}
        for term, norm in expected.items():
            assert torch.equal(trained.gradient_norms[term][i], norm), term
    assert torch.equal(trained.gradient_norms["env"], torch.zeros(3, 1, dtype=F64))
    assert float(trained.gradient_norms["orth"].min()) > 0


def test_results_carry_the_norms_of_their_own_run():
    problem = tiny.tiny_problem(dtype=F64)
    config = default_config(get_method("cal").space, tiny.Defaults)
    runs = [tiny.tiny_run(config, seed) for seed in (1, 2)]
    for run, row in zip(runs, train_runs("cal", problem, runs, gradient_norms_every=1), strict=True):
        (alone,) = train_runs("cal", problem, [run], gradient_norms_every=1)
        assert list(row.gradient_norms) == list(alone.gradient_norms)
        assert row.gradient_norms["epoch"] == [0, 1, 2]
        for term, values in alone.gradient_norms.items():
            assert row.gradient_norms[term] == pytest.approx(values, rel=1e-9)
        assert json.loads(json.dumps(row.gradient_norms)) == row.gradient_norms
