"""TaskRes and Bayes-TaskRes: they start as the zero-shot classifier, and learn its change."""

import pytest
import torch
from torch.nn import functional as F

import tiny
from bayescal.engine.optim import Adam
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs


def config(name: str, **options):
    return default_config(get_method(name).space, tiny.Defaults, **options)


def learned(name: str, problem, **options):
    return train_runs(name, problem, [tiny.tiny_run(config(name, **options), seed) for seed in (1, 2)])


@pytest.mark.parametrize("name", ["taskres", "bayes-taskres"])
def test_the_start_is_the_zero_shot_classifier(name):
    problem = tiny.tiny_problem()
    zero_shot = learned("clip", problem)[0].predict(problem, problem.features, samples=0).probs
    start = learned(name, problem, learning_rate=0.0, epochs=1)[0].predict(problem, problem.features, samples=0).probs
    torch.testing.assert_close(start, zero_shot, atol=1e-6, rtol=1e-5)


def test_a_step_is_adam_on_the_cross_entropy_of_the_changed_text_features():
    """One full-batch step against torch.optim.Adam on t + x."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config("taskres", epochs=1, batch_size=1000, learning_rate=1e-5), 1)  # the warm-up's rate
    result = train_runs("taskres", problem, [run])[0]
    prompts = [problem.tokenize(f"a photo of a {name}.") for name in problem.class_words]
    text = F.normalize(problem.text.encode(prompts), dim=-1)
    change = torch.zeros_like(text, requires_grad=True)
    optimizer = torch.optim.Adam([change], lr=1e-5)
    features, labels = problem.features[run.train], problem.labels[run.train]
    logits = problem.logit_scale * F.normalize(features, dim=-1) @ F.normalize(text + change, dim=-1).T
    F.cross_entropy(logits, labels).backward()
    optimizer.step()
    torch.testing.assert_close(result.params["class.vectors"][0], text + change.detach(), atol=1e-7, rtol=1e-6)


def test_the_prior_is_around_the_text_features():
    problem = tiny.tiny_problem()
    tight = learned("bayes-taskres", problem, beta=1e6, epochs=20)[0]
    loose = learned("bayes-taskres", problem, beta=1e-6, epochs=20)[0]
    prompts = [problem.tokenize(f"a photo of a {name}.") for name in problem.class_words]
    text = F.normalize(problem.text.encode(prompts), dim=-1)
    near, far = ((result.params["class.vectors"][0] - text).norm() for result in (tight, loose))
    assert near < 0.1 * far


@pytest.mark.parametrize("name", ["taskres", "bayes-taskres"])
def test_terms_of_cal_are_options(name):
    problem = tiny.tiny_problem()
    plain, aligned = learned(name, problem)[0], learned(name, problem, lambda_env=0.1, lambda_orth=0.1)[0]
    assert not any(entry.startswith("environment.") for entry in plain.params)
    assert "environment.vectors" in aligned.params
    assert "env" in aligned.curves
    assert "env" not in plain.curves


def test_adam_trains_them():
    assert isinstance(get_method("taskres").optimizer, Adam)
    problem = tiny.tiny_problem()
    bound = learned("bayes-taskres", problem)[0].bind(problem)
    assert isinstance(bound.optimizer, Adam)
