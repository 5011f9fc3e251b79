"""CLIP-Adapter: its formula against numpy, its sides, and what a ratio of 0 means."""

import numpy as np
import pytest
import torch

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Runs
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs

torch.set_num_threads(1)

SCALE = 10.0  # of the tiny problem


def bound(configs, seeds=(1, 2), dtype=torch.float64):
    problem = tiny.tiny_problem(dtype=dtype)
    cls = get_method("clip-adapter")
    full = [default_config(cls.space, tiny.Defaults, **config) for config in configs]
    runs = Runs.stack(cls.space, full, list(seeds)[: len(full)])
    numbers = {n: torch.tensor([float(c[n]) for c in full], dtype=dtype) for n in runs.numbers}
    method = cls(problem.task([tiny.ENVIRONMENTS]), Runs(runs.seeds, numbers, runs.settings))
    return problem, method, {n: v.to(dtype) for n, v in method.init(None).items()}


def class_texts(problem) -> np.ndarray:
    prompts = [tiny.tokenize(f"a photo of a {name}.") for name in tiny.CLASSES]
    return problem.text.encode(prompts).numpy()


def adapt(f, down, up, ratio):
    return ratio * np.maximum(np.maximum(f @ down, 0) @ up, 0) + (1 - ratio) * f


def cosines(images, texts):
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    return SCALE * unit(images) @ unit(texts).T


@pytest.mark.parametrize("side", ["image", "text", "both"])
def test_logits_against_numpy(side):
    ratios = (0.2, 0.7)
    problem, method, params = bound([{"ratio": a, "side": side} for a in ratios])
    assert {name.split(".")[0] for name in params} == ({"image", "text"} if side == "both" else {side})
    logits = method.logits(method.prepare(params, 0), problem.features[:7])[:, 0]
    for r, ratio in enumerate(ratios):
        images, texts = problem.features[:7].numpy(), class_texts(problem)
        texts = texts / np.linalg.norm(texts, axis=1, keepdims=True)
        w = {name: value[r].numpy() for name, value in params.items()}
        if side != "text":
            images = adapt(images, w["image.down"], w["image.up"], ratio)
        if side != "image":
            texts = adapt(texts, w["text.down"], w["text.up"], ratio)
        np.testing.assert_allclose(logits[r].numpy(), cosines(images, texts), rtol=1e-9)


def test_bottleneck_has_a_quarter_of_the_width():
    _, _, params = bound([{}])
    assert params["image.down"].shape == (1, 12, 3)
    assert params["image.up"].shape == (1, 3, 12)


def test_loss_is_the_cross_entropy_and_trains_the_adapter():
    problem, method, params = bound([{}, {}])
    rows = torch.stack([torch.arange(24), torch.arange(60, 84)])
    batch = Batch(problem.features[rows], problem.labels[rows], problem.environments[rows], 24, 0)
    grads, terms = method.gradients(params, batch)
    for r in range(2):
        expected = torch.nn.functional.cross_entropy(
            method.logits(method.prepare(params, 0), problem.features[rows[r]])[r, 0], problem.labels[rows[r]]
        )
        torch.testing.assert_close(terms["ce"][r], expected)
    assert all(float(grad[r].abs().max()) > 0 for grad in grads.values() for r in range(2))


def test_ratio_zero_is_zero_shot():
    problem, method, params = bound([{"ratio": 0.0}])
    logits = method.logits(method.prepare(params, 0), problem.features)[0, 0]
    np.testing.assert_allclose(logits.numpy(), cosines(problem.features.numpy(), class_texts(problem)), rtol=1e-9)


def test_new_class_names_can_be_predicted():
    problem = tiny.tiny_problem()
    config = default_config(get_method("clip-adapter").space, tiny.Defaults, epochs=1)
    (result,) = train_runs("clip-adapter", problem, [tiny.tiny_run(config, 1)])
    method = result.bind(problem, classes=("photo", "sketch"))
    assert method.logits(method.prepare(result.params, 0), problem.features).shape == (1, 1, 120, 2)


def test_unknown_side_is_refused():
    with pytest.raises(MethodError, match="side is 'left', expected one of image, text, both"):
        bound([{"side": "left"}])
