"""CoOp, CAL and Bayes-CAL: every term moves the gradient it should and no other; stacks equal single runs."""

import pytest
import torch

import tiny
from bayescal.methods import get_method, method_names
from bayescal.methods.contract import Batch, Runs, predict
from bayescal.methods.hyperparameters import default_config
from bayescal.methods.text.bayes_cal import softplus_inverse
from bayescal.training.stack import train_runs

F64 = torch.float64
ZERO = {"lambda_env": 0.0, "lambda_irm": 0.0, "lambda_orth": 0.0, "beta": 0.0}


def bound(name: str, dtype=F64, seed: int = 3, **options):
    problem = tiny.tiny_problem(dtype=dtype)
    method = get_method(name)
    config = default_config(method.space, tiny.Defaults, **options)
    runs = Runs.stack(method.space, [config], [seed])
    runs = Runs(runs.seeds, {n: v.to(dtype) for n, v in runs.numbers.items()}, runs.settings)
    return method(problem.task([tiny.ENVIRONMENTS]), runs), problem


def gradients(name: str = "bayes-cal", **options):
    method, problem = bound(name, **options)
    params = method.init(None)
    # Away from the starting point, where the KL's gradient of the mean would be zero by construction.
    params = {n: v + 0.01 * torch.arange(v.numel(), dtype=F64).view_as(v).sin() for n, v in params.items()}
    batch = Batch(
        problem.features[None, :24], problem.labels[None, :24], problem.environments[None, :24], n_train=24, step=5
    )
    return method.gradients(params, batch)


def moved(a, b) -> set[str]:
    return {n for n in a if float((a[n] - b[n]).abs().max()) > 1e-12}


MEANS = {"class.context", "environment.context"}
SCALES = {"class.rho", "environment.rho"}
# What each weight must reach. L_E trains φ_E alone, L_IRM φ_C alone, L_orth both; the KL and the noise everything.
REACH = {
    "lambda_env": {"environment.context", "environment.rho"},
    "lambda_irm": {"class.context", "class.rho"},
    "lambda_orth": MEANS | SCALES,
    "beta": MEANS | SCALES,
}


@pytest.mark.parametrize("weight", REACH)
def test_each_weight_moves_what_it_should_and_nothing_else(weight):
    # λ_orth keeps the environment branch alive without touching what is compared
    base = {**ZERO, "lambda_orth": 1e-3, "lambda_env": 1e-3}
    without, _ = gradients(**base)
    with_it, _ = gradients(**{**base, weight: 1.0})
    assert moved(without, with_it) == REACH[weight]


@pytest.mark.parametrize("option", ["prior_scale", "initial_scale"])
def test_scales_move_the_gradient(option):
    a, _ = gradients(**{option: 0.1})
    b, _ = gradients(**{option: 0.2})
    assert moved(a, b) >= MEANS


def test_the_noise_is_not_zero():
    """The gradient of σ without KL comes from the sampled loss alone: it must be there."""
    grads, _ = gradients(**{**ZERO, "lambda_env": 0.1})
    assert all(float(grads[n].abs().max()) > 1e-8 for n in SCALES)


def test_every_parameter_gets_the_gradient_of_finite_differences():
    method, problem = bound("bayes-cal", beta=0.5, lambda_orth=0.7)
    params = {n: v.to(F64) for n, v in method.init(None).items()}
    batch = Batch(problem.features[None, :24], problem.labels[None, :24], problem.environments[None, :24], 24, 5)
    grads, _ = method.gradients(params, batch)
    g = torch.Generator().manual_seed(0)
    for name, value in params.items():
        direction = torch.randn(value.shape, generator=g, dtype=F64)
        step = 1e-6
        up, down = (
            float(method.loss({**params, name: value + sign * step * direction}, batch)["total"]) for sign in (1, -1)
        )
        gradient = float((grads[name] * direction).sum())
        # the noise is float32 by construction, so the two losses agree to about 1e-9 / step
        assert (up - down) / (2 * step) == pytest.approx(gradient, rel=1e-5, abs=1e-7), name


def test_total_is_the_weighted_sum_of_the_terms():
    weights = {"lambda_env": 0.3, "lambda_irm": 0.2, "lambda_orth": 0.7, "beta": 0.4}
    _, terms = gradients(**weights)
    total = terms["ce"] + 0.3 * terms["env"] + 0.2 * terms["irm"] + 0.7 * terms["orth"] + 0.4 / 24 * terms["kl"]
    assert torch.allclose(terms["total"], total, atol=1e-6)


def test_samples_have_the_posterior_mean_and_scale():
    method, _ = bound("bayes-cal", dtype=torch.float32)
    params = method.init(None)
    params["class.rho"] = softplus_inverse(torch.linspace(0.01, 0.2, params["class.rho"].numel())).view_as(
        params["class.rho"]
    )
    samples = method.sample(params, "class", "test", 0, 4000)
    std = torch.nn.functional.softplus(params["class.rho"])
    assert torch.allclose(samples.mean(1), params["class.context"], atol=5 * 0.2 / 4000**0.5)
    assert float((samples.std(1) / std - 1).abs().max()) < 0.06


def test_kl_is_the_sum_over_both_branches():
    method, _ = bound("bayes-cal")
    params = {n: v.to(F64) + 0.03 for n, v in method.init(None).items()}
    normal = torch.distributions.Normal
    expected = sum(
        torch.distributions.kl_divergence(
            normal(params[f"{b}.context"], torch.nn.functional.softplus(params[f"{b}.rho"])),
            normal(method.prior_mean[b].to(F64), tiny.Posterior.prior_scale),
        ).sum()
        for b in ("class", "environment")
    )
    ours = sum(method.kl(params, b) for b in ("class", "environment"))
    assert float(ours) == pytest.approx(float(expected), rel=1e-6)


def test_softplus_inverse():
    y = torch.tensor([1e-10, 1e-4, 0.02, 1.0, 30.0], dtype=F64)
    assert torch.allclose(torch.nn.functional.softplus(softplus_inverse(y)), y, rtol=1e-9)


def test_posterior_mean_is_deterministic_and_samples_differ_from_it():
    method, problem = bound("bayes-cal", dtype=torch.float32, prior_scale=0.5, initial_scale=1.0)
    params = method.init(None)
    mean = predict(method, params, problem.features, samples=0)
    drawn = predict(method, params, problem.features, samples=8)
    assert torch.equal(mean.probs, predict(method, params, problem.features, samples=0).probs)
    assert torch.equal(drawn.probs, predict(method, params, problem.features, samples=8).probs)
    assert float((mean.probs - drawn.probs).abs().max()) > 1e-4
    # Jensen: the entropy of the mean is at least the mean of the entropies
    entropy = torch.special.entr(drawn.probs).sum(-1)
    assert bool((entropy >= drawn.expected_entropy - 1e-6).all())
    assert float((entropy - drawn.expected_entropy).max()) > 1e-3


def test_one_environment_leaves_cross_entropy_alone():
    problem = tiny.tiny_problem()
    method = get_method("bayes-cal")
    runs = Runs.stack(method.space, [default_config(method.space, tiny.Defaults)], [1])
    one = method(problem.task([("photo",)]), runs)
    params = one.init(None)
    assert set(params) == {"class.context", "class.rho"}
    batch = Batch(problem.features[None, :9], problem.labels[None, :9], torch.zeros(1, 9, dtype=torch.long), 9, 0)
    assert set(one.loss(params, batch)) == {"ce", "kl", "total"}


def test_cal_without_terms_is_coop():
    problem = tiny.tiny_problem()
    results = {}
    for name, options in (("coop", {}), ("cal", {"lambda_env": 0.0, "lambda_irm": 0.0, "lambda_orth": 0.0})):
        config = default_config(get_method(name).space, tiny.Defaults, **options)
        results[name] = train_runs(name, problem, [tiny.tiny_run(config, 1)])[0]
    a, b = results["coop"].params["context"], results["cal"].params["class.context"]
    assert torch.allclose(a, b, atol=1e-6)


def test_bayes_cal_with_vanishing_noise_and_no_kl_is_cal():
    problem = tiny.tiny_problem()
    options = {"beta": 0.0, "prior_scale": 1e-8, "initial_scale": 1.0}
    bayes = default_config(get_method("bayes-cal").space, tiny.Defaults, **options)
    plain = default_config(get_method("cal").space, tiny.Defaults)
    a = train_runs("bayes-cal", problem, [tiny.tiny_run(bayes, 1)])[0].params["class.context"]
    b = train_runs("cal", problem, [tiny.tiny_run(plain, 1)])[0].params["class.context"]
    assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("name", ["coop", "cal", "bayes-cal"])
@pytest.mark.parametrize("layout", [{}, {"position": "middle"}, {"class_specific": True}], ids=str)
def test_stack_equals_single_runs(name, layout):
    """Rows with other seeds, splits, rates, weights and training environments, trained together and one by one."""
    problem = tiny.tiny_problem(dtype=F64)  # float64 shows that the rows are the same mathematics, not just close
    space = get_method(name).space
    runs = []
    for i, (seed, environments) in enumerate([(1, (0, 1)), (2, (0, 2)), (2, (1, 2)), (5, (0, 1))]):
        changes = {
            "learning_rate": 0.02 * (i + 1),
            "lambda_irm": 0.1 * i,
            "beta": 0.01 * i,
            "prior_scale": 0.1 / (i + 1),
        }
        config = default_config(space, tiny.Defaults, **layout, **{k: v for k, v in changes.items() if k in space})
        runs.append(tiny.tiny_run(config, seed, environments))
    together = train_runs(name, problem, runs)
    for run, row in zip(runs, together, strict=True):
        alone = train_runs(name, problem, [run])[0]
        assert row.best_epoch == alone.best_epoch
        for key, value in alone.params.items():
            assert torch.allclose(row.params[key], value, atol=1e-10), key
        assert row.curves["ce"] == pytest.approx(alone.curves["ce"], abs=1e-10)


@pytest.mark.parametrize("name", ["coop", "cal", "bayes-cal"])
def test_learns(name):
    """Six seeds, each with images of its own, beside twins that never take a step: one stack.

    At half the default rate 20 of 20 seeds of each method end with all validation images right; at the default one
    of Bayes-CAL's is still jumping when training ends, and rounding decides where it lands.
    """
    problem = tiny.tiny_problem(gentle=True)
    space = get_method(name).space
    options = {"epochs": 60, "beta": 0.01} if "beta" in space else {"epochs": 60}
    runs = [
        tiny.tiny_run(default_config(space, tiny.Defaults, learning_rate=rate, **options), seed)
        for rate in (tiny.Defaults.learning_rate / 2, 0.0)
        for seed in range(1, 7)
    ]
    results = train_runs(name, problem, runs)
    learned, untrained = (torch.tensor([r.curves["val"][-1] for r in part]) for part in (results[:6], results[6:]))
    assert learned.min() >= 0.9, learned  # of 15 images; chance is a third
    assert untrained.max() < 0.75, untrained
    assert (learned - untrained).mean() > 0.3
    assert all(r.curves["ce"][-1] < 0.3 * r.curves["ce"][0] for r in results[:6])


def test_every_registered_method_says_what_it_is():
    for name in method_names():
        method = get_method(name)
        assert method.name == name
        assert all(getattr(method, attribute) for attribute in ("title", "learns", "cost", "citation"))
