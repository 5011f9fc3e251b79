"""The timm model as a network of the algorithms: the same numbers as the plain module, forwards and backwards."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from whole_models import MODEL, SIZE, bound, equal, some_batch

from bayescal.end_to_end.algorithms import algorithm_names
from bayescal.end_to_end.network import BODY, TimmNetwork, evaluating
from bayescal.end_to_end.vision import load_vision
from bayescal.errors import MethodError


@pytest.fixture
def vision():
    return load_vision(MODEL, SIZE, seed=5)


@pytest.fixture
def network(vision):
    return TimmNetwork(vision.module, vision.n_features, 4)


def plain_module(network: TimmNetwork, params) -> nn.Sequential:
    """The same model as ordinary modules."""
    head = nn.Linear(network.n_features, network.n_classes)
    head.weight.data, head.bias.data = params["head.weight"][0].T.clone(), params["head.bias"][0].clone()
    return nn.Sequential(copy.deepcopy(network.module), head)


def images(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def test_parameters_have_a_leading_dimension_of_one_and_depend_on_the_seed(network):
    params = network.init(torch.tensor([5]))
    assert all(value.shape[0] == 1 for value in params.values())
    assert params[f"{BODY}conv1.0.weight"].shape[1:] == network.module.conv1[0].weight.shape
    assert network.classify(params, network.features(params, images())).shape == (1, 6, 4)
    assert not torch.equal(params["head.weight"], network.init(torch.tensor([6]))["head.weight"])
    first, again, other = (load_vision(MODEL, SIZE, seed=s).module.state_dict() for s in (5, 5, 6))
    assert equal(first, again)
    assert not equal(first, other)


def test_training_passes_equal_the_plain_module_in_output_gradient_and_statistics(network):
    params = network.init(torch.tensor([5]))
    plain = plain_module(network, params).train()
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    for x in (images(), images() * 2 + 1):  # twice, so that the statistics are a running mean
        leaves = {n: v.clone().requires_grad_() for n, v in params.items() if n not in network.frozen}
        logits = network.classify(leaves, network.features({**params, **leaves}, x[None]))[0]
        expected = plain(x)
        assert torch.allclose(logits, expected, atol=1e-5)
        plain.zero_grad()
        F.cross_entropy(expected, labels).backward()
        grads = dict(
            zip(leaves, torch.autograd.grad(F.cross_entropy(logits, labels), list(leaves.values())), strict=True)
        )
        for name, value in plain[0].named_parameters():
            assert torch.allclose(grads[f"{BODY}{name}"][0], value.grad, atol=1e-6, rtol=1e-4), name
        assert torch.allclose(grads["head.weight"][0].T, plain[1].weight.grad, atol=1e-6)
    for name, value in plain[0].named_buffers():
        assert torch.equal(params[f"{BODY}{name}"][0], value), name
    assert int(params[f"{BODY}bn1.num_batches_tracked"]) == 2


def test_prediction_uses_the_running_statistics_and_leaves_them_alone(network):
    params = network.init(torch.tensor([5]))
    network.features(params, images() * 3)
    plain = plain_module(network, params)
    plain[0].load_state_dict({n.removeprefix(BODY): v[0] for n, v in params.items() if n.startswith(BODY)})
    before = {name: value.clone() for name, value in params.items()}
    predicting = network.evaluating()
    with torch.no_grad():
        logits = predicting.classify(params, predicting.features(params, images()))[0]
        assert torch.allclose(logits, plain.eval()(images()), atol=1e-5)
        one = predicting.features(params, images()[:1])  # an image's answer does not depend on its company
        assert torch.allclose(one, predicting.features(params, images())[:, :1], atol=1e-5)
    assert equal(before, params)


def test_bfloat16_computes_the_body_and_hands_float32_on(vision):
    exact = TimmNetwork(vision.module, vision.n_features, 2)
    rounded = TimmNetwork(vision.module, vision.n_features, 2, precision=torch.bfloat16)
    params = exact.init(torch.tensor([1]))
    a, b = (net.evaluating().features(params, images()) for net in (exact, rounded))
    assert b.dtype == torch.float32
    assert 0 < float((a - b).abs().max()) < 0.1 * float(a.abs().max())


def test_a_stack_of_several_runs_is_refused(network):
    with pytest.raises(MethodError, match="one run at a time"):
        network.init(torch.tensor([1, 2]))


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_moves_what_it_learns_and_no_gradient_reaches_the_statistics(name):
    method = bound(name)
    params, moved = method.init(None), set()
    statistics = {n: params[n].clone() for n in method.network.frozen}
    for step in range(4 if name == "irm-games" else 1):  # the game's players take turns
        grads, terms = method.gradients(params, some_batch(step=step))
        assert not set(grads) & set(method.network.frozen)
        assert all(torch.isfinite(g).all() for g in grads.values())
        assert terms["total"].shape == (1,)
        moved |= {n for n, g in grads.items() if bool(g.abs().max() > 0)}
    assert f"{BODY}conv1.0.weight" in moved  # the first layer: gradients go all the way down
    assert any(n.endswith(".weight") and not n.startswith(BODY) for n in moved)
    running = [n for n in statistics if n.endswith("running_mean")]
    assert all(not torch.equal(statistics[n], params[n]) for n in running)  # a training pass updates them
    assert evaluating(method).logits(params, some_batch().features[0]).shape == (1, 1, 12, 2)


def test_mldg_exact_differentiates_through_the_inner_step_on_pixels_too():
    first, exact = (bound("mldg", second_order=flag, inner_rate=0.5) for flag in (False, True))
    params = first.init(None)
    a, b = (m.gradients({n: v.clone() for n, v in params.items()}, some_batch())[0] for m in (first, exact))
    name = f"{BODY}conv1.0.weight"
    assert torch.isfinite(b[name]).all()
    assert not torch.allclose(a[name], b[name], rtol=1e-3)


def test_stable_learning_passes_the_images_once():
    method = bound("stable")
    params = method.init(None)
    method.gradients(params, some_batch())
    counters = [v for n, v in params.items() if n.endswith("num_batches_tracked")]
    assert counters
    assert all(int(v) == 1 for v in counters)
