"""LV: vectors, their Gaussians, and what belongs to which name."""

import pytest
import torch
from text_side import batch_of, bound, check_stack_equals_single_runs, stirred, train_accuracy
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs

VECTORS = ("class.vectors", "environment.vectors")


def test_no_prompt_option_and_nothing_but_vectors():
    method, problem = bound("bayes-cal-lv")
    assert not {"n_context", "context_init", "position", "class_specific"} & set(method.space)
    params = method.init(None)
    assert {name for name in params if name not in method.frozen} == {*VECTORS, "class.rho", "environment.rho"}
    assert method.parameter_count(params) == 2 * (3 + 3) * problem.text.dim  # mean and scale of six vectors


def test_random_vectors_are_directions_of_length_one():
    method, _ = bound("cal-lv", seeds=range(200))
    vectors = method.init(None)["class.vectors"]  # (200, 3, 12)
    assert float(vectors.norm(dim=-1).square().mean()) == pytest.approx(1.0, abs=0.05)
    assert float(vectors.mean().abs()) < 0.02
    assert not torch.equal(vectors[0], vectors[1])


def test_a_template_starts_from_zero_shot():
    template = "a photo of a {}."
    method, problem = bound("bayes-cal-lv", vector_init=template)
    zero_shot, _ = bound("clip", problem=problem, template=template)
    ours = predict(method, method.init(None), problem.features).probs
    assert torch.allclose(ours, predict(zero_shot, {}, problem.features).probs, atol=1e-10)
    with pytest.raises(MethodError, match=r"needs a \{\}"):
        bound("cal-lv", vector_init="a photo")[0].init(None)


@pytest.mark.parametrize("rest", ["{}", "{x}", "{1}", "{0.__class__}", "{:>99999999999}", "{", "}}"])
@pytest.mark.parametrize(("name", "option"), [("clip", "template"), ("cal-lv", "vector_init")])
def test_a_template_is_letters_but_for_the_places_of_the_name(monkeypatch, name, option, rest):
    """No format string: `{1}` ended in an error of Python, and `{:>99999999999}` took all memory."""
    read = []
    monkeypatch.setattr(tiny, "tokenize", lambda text: (read.append(text), [0])[1])
    method, _ = bound(name, **{option: "a {} " + rest})
    method.text_features() if name == "clip" else method.init(None)
    first = tiny.CLASSES[0]
    assert f"a {first} {rest.replace('{}', first)}" in read


def test_kl_is_that_of_two_gaussians():
    method, _ = bound("bayes-cal-lv", prior_scale=0.3)
    params = stirred(method.init(None))
    expected = sum(
        kl_divergence(
            Normal(params[f"{branch}.vectors"], F.softplus(params[f"{branch}.rho"])),
            Normal(method.prior_mean[branch], 0.3),
        ).sum()
        for branch in ("class", "environment")
    )
    assert float(method.loss(params, batch_of(bound("bayes-cal-lv")[1]))["kl"]) == pytest.approx(float(expected), 1e-6)


def test_samples_have_the_learned_mean_and_scale():
    method, _ = bound("bayes-cal-lv", dtype=torch.float32)
    params = stirred(method.init(None))
    samples = method.sample(params, "class", "test", 0, 4000)  # (1, 4000, 3, 12)
    std = F.softplus(params["class.rho"])
    assert float(((samples.mean(1) - params["class.vectors"]) / std).abs().max()) < 5 / 4000**0.5
    assert float((samples.std(1) / std - 1).abs().max()) < 0.06


def test_gradients_reach_means_and_scales_but_not_the_names():
    method, problem = bound("bayes-cal-lv")
    grads, _ = method.gradients(stirred(method.init(None)), batch_of(problem))
    assert set(grads) == {*VECTORS, "class.rho", "environment.rho"}
    assert all(float(grad.abs().max()) > 1e-8 for grad in grads.values())


@pytest.mark.parametrize("name", ["cal-lv", "bayes-cal-lv"])
def test_a_vector_is_found_by_its_name(name):
    problem = tiny.tiny_problem()
    config = default_config(get_method(name).space, tiny.Defaults)
    result = train_runs(name, problem, [tiny.tiny_run(config, 1)])[0]
    whole = predict(result.bind(problem), result.params, problem.features).probs[0]
    part = predict(result.bind(problem, ["house", "dog"]), result.params, problem.features).probs[0]
    chosen = whole[:, [2, 0]]
    assert torch.allclose(part, chosen / chosen.sum(1, keepdim=True), atol=1e-5)
    # as many new names as there were old ones: nothing but the names themselves shows the mistake
    with pytest.raises(MethodError, match="no vector was learned for 'bird', 'tree'"):
        predict(result.bind(problem, ["bird", "dog", "tree"]), result.params, problem.features)


def test_scales_follow_their_names():
    problem = tiny.tiny_problem()
    method, _ = bound("bayes-cal-lv", problem=problem)
    params = method.init(None)
    params["class.rho"] = params["class.rho"] + torch.arange(3.0)[None, :, None]
    result = train_runs("bayes-cal-lv", problem, [tiny.tiny_run(default_config(method.space, tiny.Defaults), 3)])[0]
    fewer = result.bind(problem, ["house", "dog"])
    std = F.softplus(params["class.rho"])[:, [2, 0]]
    samples = fewer.sample(params, "class", "test", 0, 2000)
    assert float((samples.std(1) / std - 1).abs().max()) < 0.1


NUMBERS = [{"learning_rate": 0.02}, {"learning_rate": 0.05, "lambda_irm": 0.3}, {"lambda_orth": 0.9}]


@pytest.mark.parametrize("name", ["cal-lv", "bayes-cal-lv"])
@pytest.mark.parametrize("start", ["", "a photo of a {}."])
def test_stack_equals_single_runs(name, start):
    check_stack_equals_single_runs(name, NUMBERS, vector_init=start)


@pytest.mark.parametrize("name", ["cal-lv", "bayes-cal-lv"])
def test_learns(name):
    assert train_accuracy(name, epochs=40, learning_rate=0.02) > 0.9
