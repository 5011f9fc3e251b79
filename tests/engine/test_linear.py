"""Frozen linear layers: the same numbers and gradients by either library, and weights that are trained stay trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayescal.engine import linear as engine
from bayescal.engine.linear import FrozenAttention, FrozenLinear, add_product, freeze_products, linear, times_rows


@pytest.fixture(params=["oneDNN", "MKL"])
def library(request, monkeypatch):
    if request.param == "oneDNN" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(engine, "one_dnn_is_faster", lambda: request.param == "oneDNN")
    return request.param


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(40, 24), (3, 7, 24), (2, 3, 5, 24), (2, 24), (0, 24)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_and_gradients_are_torchs(library, shape, with_bias):
    x, weight, bias = random(*shape).requires_grad_(), random(10, 24), random(10) if with_bias else None
    expected_x = x.detach().double().requires_grad_()
    expected = F.linear(expected_x, weight.double(), None if bias is None else bias.double())
    found = linear(x, weight, bias)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)
    along = random(*found.shape)
    found.backward(along)
    expected.backward(along.double())
    torch.testing.assert_close(x.grad.double(), expected_x.grad, rtol=0, atol=2e-5)


def test_gradients_have_gradients(library):
    x, weight = random(40, 24).requires_grad_(), random(10, 24)
    (gradient,) = torch.autograd.grad(linear(x, weight).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    reference = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(F.linear(reference, weight.double()).square().sum(), reference, create_graph=True)
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad.double(), reference.grad, rtol=1e-4, atol=0)


def test_gradients_and_inputs_that_are_not_contiguous(library):
    x, weight = random(24, 40), random(24, 10)
    expected = x.t() @ weight
    torch.testing.assert_close(linear(x.t(), weight.t()), expected, rtol=0, atol=2e-5)
    same_rows = random(1, 24).expand(40, 24)
    torch.testing.assert_close(linear(same_rows, weight.t()), same_rows @ weight, rtol=0, atol=2e-5)


def test_adding_a_product(library):
    out, x, weight = random(40, 24), random(40, 10), random(10, 24)
    expected = out + x @ weight
    add_product(out, x, weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-5)


def test_a_weight_that_is_trained_gets_its_gradient(library):
    layer = FrozenLinear(24, 10)
    layer(random(40, 24)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_torchs_own(library, dtype):
    x, weight = random(40, 24).to(dtype), random(10, 24).to(dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_autocast_reaches_it(library):
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(random(40, 24), random(10, 24)).dtype == torch.bfloat16


@pytest.mark.parametrize("asked", [None, 1])
def test_attention_is_torchs(library, asked):
    plain = nn.MultiheadAttention(24, 3, batch_first=True).eval().requires_grad_(False)
    frozen = FrozenAttention(24, 3, batch_first=True).eval().requires_grad_(False)
    frozen.load_state_dict(plain.state_dict())
    x = random(4, 9, 24)
    query = x if asked is None else x[:, :asked]
    expected, _ = plain(query, x, x, need_weights=False)
    torch.testing.assert_close(frozen(query, x, x, need_weights=False)[0], expected, rtol=0, atol=1e-6)
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    found, weights = frozen(x, x, x, attn_mask=mask)
    expected, expected_weights = plain(x, x, x, attn_mask=mask)
    assert torch.equal(found, expected)
    assert torch.equal(weights, expected_weights)
    with pytest.raises(TypeError):
        frozen(x)


def test_a_tower_is_frozen_in_place(library):
    class Own(nn.Linear):
        pass

    tower = nn.Sequential(nn.Linear(24, 24), nn.GELU(), Own(24, 24), nn.MultiheadAttention(24, 3))
    tensors = {name: tensor.data_ptr() for name, tensor in tower.state_dict().items()}
    assert freeze_products(tower) is tower
    assert [type(part) for part in tower] == [FrozenLinear, nn.GELU, Own, FrozenAttention]
    assert {name: tensor.data_ptr() for name, tensor in tower.state_dict().items()} == tensors


def test_oneDNN_is_asked_where_it_is_faster(monkeypatch):
    calls = []
    monkeypatch.setattr(engine, "_product", lambda x, weight, bias: calls.append(len(x)) or F.linear(x, weight, bias))
    for faster in (True, False):
        monkeypatch.setattr(engine, "one_dnn_is_faster", lambda faster=faster: faster)
        linear(random(engine.FEW, 24), random(10, 24))
        linear(random(engine.FEW - 1, 24), random(10, 24))
    assert calls == [engine.FEW]


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("images", [0, 1, 3])
def test_products_with_rows_are_those_of_matrices(images, rows):
    held = random(rows + 2, 24)[2:]  # which begins in the middle of a larger tensor
    x = random(images, 24)
    torch.testing.assert_close(times_rows(x, held), x @ held.T, rtol=0, atol=1e-6)
    torch.testing.assert_close(times_rows(x, held.T.contiguous().T), x @ held.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [8, 9])
def test_products_of_one_image_with_rows_have_their_gradients(rows):
    x, held = random(1, 24).requires_grad_(), random(rows, 24).requires_grad_()
    found = torch.autograd.grad(times_rows(x, held).square().sum(), (x, held))
    expected = torch.autograd.grad((x @ held.T).square().sum(), (x, held))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
