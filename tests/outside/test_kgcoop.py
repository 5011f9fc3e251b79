"""KgCoOp against its equation, in stacks, and as a CUDA graph: what a method from outside gets without further code."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import tiny
from bayescal.methods import method_reference
from bayescal.methods.contract import Batch, Runs
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs
from fake_cuda import FakeCuda


@pytest.fixture
def kgcoop(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "kgcoop")
    from kgcoop import KgCoOp

    return KgCoOp


def configs(method, *weights: float, **options) -> list[dict]:
    return [default_config(method.space, tiny.Defaults, lambda_kg=weight, **options) for weight in weights]


def test_the_loss_is_that_of_the_paper(kgcoop):
    problem = tiny.tiny_problem(dtype=torch.float64)
    weights, images = (8.0, 0.5), torch.arange(24)
    runs = Runs.stack(kgcoop.space, configs(kgcoop, *weights), [1, 2])
    method = kgcoop(problem.task([tiny.ENVIRONMENTS]), runs)
    params = {"context": method.init(None)["context"] + 0.3}
    both = images.expand(2, -1)
    batch = Batch(problem.features[both], problem.labels[both], problem.environments[both], 24, 0)
    terms = method.loss(params, batch)
    prompts = [tiny.tokenize(f"a photo of a {name}.") for name in tiny.CLASSES]
    by_hand = F.normalize(problem.text.encode(prompts), dim=-1)
    learned = F.normalize(method.prompts.features(params["context"][:, None]), dim=-1)[:, 0]  # (R, C, D)
    for r, weight in enumerate(weights):
        logits = 10.0 * F.normalize(problem.features[images], dim=-1) @ learned[r].T
        ce = F.cross_entropy(logits, problem.labels[images])
        distances = [
            sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in zip(learned[r], by_hand, strict=True)
        ]
        kg = sum(distances) / len(tiny.CLASSES)
        assert float(terms["kg"][r]) == pytest.approx(float(kg), rel=1e-12)
        assert float(terms["total"][r]) == pytest.approx(float(ce + weight * kg), rel=1e-12)


def test_the_default_is_the_papers(kgcoop):
    assert default_config(kgcoop.space, tiny.Defaults)["lambda_kg"] == 8.0
    assert method_reference(kgcoop) == "kgcoop:KgCoOp"  # not installed here: by its class


def test_without_its_term_it_is_coop(kgcoop):
    problem = tiny.tiny_problem(gentle=True)  # lively, it makes leaps of the last digits
    (config,) = configs(kgcoop, 0.0, epochs=4)
    ours = train_runs(kgcoop, problem, [tiny.tiny_run(config, 1)])[0]
    own = {name: value for name, value in config.items() if name not in ("lambda_kg", "template")}
    coop = train_runs("coop", problem, [tiny.tiny_run(own, 1)])[0]
    assert torch.allclose(ours.params["context"], coop.params["context"], atol=1e-6)


def test_a_larger_weight_keeps_the_classes_nearer(kgcoop):
    problem = tiny.tiny_problem(gentle=True)
    slow = {"epochs": 30, "learning_rate": 0.003}  # the tiny tower's own rate is for a loss that is not eight times it
    runs = [tiny.tiny_run(config, 1) for config in configs(kgcoop, 0.0, 1.0, 8.0, **slow)]
    distance = [result.curves["kg"][-1] for result in train_runs(kgcoop, problem, runs)]
    assert distance[0] > 2 * distance[1] > 4 * distance[2]


def test_a_stack_is_its_runs(kgcoop):
    problem = tiny.tiny_problem(dtype=torch.float64)
    runs = [tiny.tiny_run(config, seed) for seed, config in enumerate(configs(kgcoop, 0.5, 8.0), start=1)]
    for run, row in zip(runs, train_runs(kgcoop, problem, runs), strict=True):
        alone = train_runs(kgcoop, problem, [run])[0]
        assert row.method is kgcoop
        assert torch.allclose(row.params["context"], alone.params["context"], atol=1e-9)


def test_its_step_can_be_a_cuda_graph(kgcoop, monkeypatch):
    problem, runs = tiny.tiny_problem(), [tiny.tiny_run(config, 1) for config in configs(kgcoop, 0.5, 8.0)]
    plain = train_runs(kgcoop, problem, runs)
    fake = FakeCuda(monkeypatch)
    fake.train_as_on_a_gpu(monkeypatch)
    played_back = train_runs(kgcoop, problem, runs)
    assert fake.log.count("replay") > 0
    for a, b in zip(plain, played_back, strict=True):
        assert torch.equal(a.params["context"], b.params["context"])
        assert a.curves == b.curves
