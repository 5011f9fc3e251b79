"""W2V: the MLP on word vectors, its Gaussians, unknown words, and models that predict without the file."""

import numpy as np
import pytest
import torch
from text_side import batch_of, bound, check_stack_equals_single_runs, stirred, train_accuracy
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import tiny
from bayescal.errors import BayescalWarning, MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs

KNOWN = (*tiny.CLASSES, *tiny.ENVIRONMENTS, "bird", "boat")
DIM = 10


@pytest.fixture
def vectors(tmp_path):
    """A file of word vectors for the words of the tiny problem and two more."""
    path = tmp_path / "words.npz"
    table = np.random.default_rng(0).normal(scale=3.0, size=(len(KNOWN), DIM)).astype(np.float32)
    np.savez(path, words=np.array(KNOWN), rows=np.arange(len(KNOWN)), table=table)
    return path


def by_hand(params, branch, table, activation=torch.relu):
    """The MLP of one row, written out: table (K, DIM) → (K, D)."""
    x = torch.from_numpy(table).double()
    x = x / x.norm(dim=1, keepdim=True) * DIM**0.5
    hidden = activation(x @ params[f"{branch}.hidden.weight"][0] + params[f"{branch}.hidden.bias"][0])
    return hidden @ params[f"{branch}.out.weight"][0] + params[f"{branch}.out.bias"][0]


def test_mean_is_the_mlp_of_the_word_vectors(vectors):
    method, _ = bound("bayes-cal-w2v", word_vectors=str(vectors))
    table = np.load(vectors)["table"]
    start = method.init(None)
    assert start["class.hidden.weight"].shape == (1, DIM, 600)
    assert start["class.rho"].shape == (1, 3, 12)  # a scale per name and output
    assert torch.allclose(method.prior_mean["class"][0], by_hand(start, "class", table[:3]), atol=1e-10)
    params = stirred({n: v for n, v in start.items() if n not in method.frozen}) | {n: start[n] for n in method.frozen}
    mean = method.sample(params, "environment", "", 0, 0)[0, 0]
    assert torch.allclose(mean, by_hand(params, "environment", table[3:6]), atol=1e-6)


def test_hidden_layers_may_be_sigmoids_as_in_the_authors_code(vectors):
    method, _ = bound("bayes-cal-w2v", word_vectors=str(vectors), activation="sigmoid")
    start = method.init(None)
    expected = by_hand(start, "class", np.load(vectors)["table"][:3], torch.sigmoid)
    assert torch.allclose(method.prior_mean["class"][0], expected, atol=1e-10)
    assert float(start["class.hidden.weight"].std()) == pytest.approx(DIM**-0.5, rel=0.05)  # no ReLU's factor of 2
    with pytest.raises(MethodError, match="activation 'tanh': expected relu or sigmoid"):
        bound("cal-w2v", word_vectors=str(vectors), activation="tanh")[0].init(None)


def test_outputs_start_with_unit_variance(vectors):
    method, _ = bound("cal-w2v", seeds=range(20), word_vectors=str(vectors))
    mean = method.branches["class"].mean(method.branch(method.init(None), "class"))
    assert 0.8 < float(mean.std()) < 1.25


def test_kl_is_that_of_two_gaussians(vectors):
    method, problem = bound("bayes-cal-w2v", word_vectors=str(vectors), prior_scale=0.3)
    start = method.init(None)
    params = {n: v if n in method.frozen else stirred({n: v})[n] for n, v in start.items()}
    table = np.load(vectors)["table"]
    expected = 0.0
    for branch, rows in (("class", table[:3]), ("environment", table[3:6])):
        q = Normal(by_hand(params, branch, rows), F.softplus(params[f"{branch}.rho"][0]))
        expected += float(kl_divergence(q, Normal(by_hand(start, branch, rows), 0.3)).sum())
    assert float(method.loss(params, batch_of(problem))["kl"]) == pytest.approx(expected, rel=1e-6)


def test_gradients_reach_everything_but_the_word_vectors(vectors):
    method, problem = bound("bayes-cal-w2v", word_vectors=str(vectors))
    grads, _ = method.gradients(method.init(None), batch_of(problem))
    layers = ("hidden.weight", "hidden.bias", "out.weight", "out.bias", "rho")
    assert set(grads) == {f"{branch}.{layer}" for branch in ("class", "environment") for layer in layers}
    assert all(float(grad.abs().max()) > 1e-8 for grad in grads.values())


@pytest.mark.parametrize("name", ["cal-w2v", "bayes-cal-w2v"])
def test_a_trained_model_predicts_without_the_file_and_new_names_with_it(name, vectors):
    problem = tiny.tiny_problem()
    config = default_config(get_method(name).space, tiny.Defaults, word_vectors=str(vectors))
    result = train_runs(name, problem, [tiny.tiny_run(config, 1)])[0]
    new = ["house", "bird", "boat"]
    before = predict(result.bind(problem), result.params, problem.features, samples=3).probs
    with_new = predict(result.bind(problem, new), result.params, problem.features, samples=0).probs
    weights = result.bind(problem, new).prepare(result.params, 0)[0, 0]
    rows = [KNOWN.index(word) for word in new]
    params = {n: v.double() for n, v in result.params.items()}
    expected = problem.logit_scale * F.normalize(by_hand(params, "class", np.load(vectors)["table"][rows]), dim=-1)
    assert torch.allclose(weights.double(), expected, atol=1e-4)
    vectors.unlink()
    assert torch.equal(predict(result.bind(problem), result.params, problem.features, samples=3).probs, before)
    assert with_new.shape == (1, 120, 3)
    with pytest.raises(MethodError, match="no file of word vectors"):
        predict(result.bind(problem, new), result.params, problem.features)


def test_a_new_name_has_the_priors_scale(vectors):
    method, problem = bound("bayes-cal-w2v", word_vectors=str(vectors), dtype=torch.float32, prior_scale=2.0)
    params = method.init(None)
    params["class.rho"] = params["class.rho"] * 0 - 3.0
    result = train_runs(
        "bayes-cal-w2v",
        problem,
        [tiny.tiny_run(default_config(method.space, tiny.Defaults, word_vectors=str(vectors), prior_scale=2.0), 3)],
    )[0]
    samples = result.bind(problem, ["bird", "cat"]).sample(params, "class", "test", 0, 3000)
    assert float((samples[:, :, 0].std(1) / 2.0 - 1).abs().max()) < 0.1
    assert float((samples[:, :, 1].std(1) / F.softplus(torch.tensor(-3.0)) - 1).abs().max()) < 0.1


def test_unknown_words(vectors):
    problem = tiny.tiny_problem()
    wrong = problem.__class__(**{**problem.__dict__, "class_words": ("dog", "wug", "blick house")})
    with pytest.raises(MethodError, match="'wug', 'blick'"):
        bound("cal-w2v", problem=wrong, word_vectors=str(vectors))[0].init(None)
    with pytest.warns(BayescalWarning, match="wug, blick"):
        words = bound("cal-w2v", problem=wrong, word_vectors=str(vectors), oov="zero")[0].init(None)["class.words"]
    assert float(words[0, 1].abs().max()) == 0.0
    assert torch.isfinite(words).all()


def test_the_file_must_be_named(vectors, monkeypatch):
    monkeypatch.delenv("BAYESCAL_WORD_VECTORS", raising=False)
    with pytest.raises(MethodError, match="pass word_vectors=PATH"):
        bound("cal-w2v")[0].init(None)
    monkeypatch.setenv("BAYESCAL_WORD_VECTORS", str(vectors))
    assert bound("cal-w2v")[0].init(None)["class.words"].shape == (1, 3, DIM)


NUMBERS = [{"learning_rate": 0.002}, {"learning_rate": 0.005, "lambda_irm": 0.3}, {"lambda_orth": 0.9}]


@pytest.mark.parametrize("name", ["cal-w2v", "bayes-cal-w2v"])
def test_stack_equals_single_runs(name, vectors):
    check_stack_equals_single_runs(name, NUMBERS, word_vectors=str(vectors))


@pytest.mark.parametrize("name", ["cal-w2v", "bayes-cal-w2v"])
def test_learns(name, vectors):
    assert train_accuracy(name, epochs=40, learning_rate=0.002, word_vectors=str(vectors)) > 0.9
