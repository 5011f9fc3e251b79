"""The visual network: the paper's size, its initialisation, and that algorithms see nothing but its protocol."""

import pytest
import torch
from visual_setup import METHODS, case

from bayescal.backbones.defaults import CLIP
from bayescal.engine.optim import SGD
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Runs
from bayescal.methods.domain_generalization.network import MLP, Heads, linear_init
from bayescal.methods.hyperparameters import default_config


def test_the_stack_equals_plain_networks():
    c = case("erm", [{}, {}])
    logits = c.method.logits(c.params, c.batch.features)[:, 0]
    for r in range(2):
        net, x, _, _ = c.row(r)
        torch.testing.assert_close(logits[r], net(x), rtol=1e-12, atol=1e-12)


def test_images_shared_by_all_rows_give_what_copies_of_them_give():
    c = case("erm", [{}, {}])
    shared = c.batch.features[0]
    torch.testing.assert_close(c.method.logits(c.params, shared), c.method.logits(c.params, shared.expand(2, -1, -1)))


def test_the_length_of_a_feature_does_not_matter():
    c = case("erm")
    torch.testing.assert_close(
        c.method.logits(c.params, c.batch.features), c.method.logits(c.params, 37.0 * c.batch.features)
    )


def test_size_is_that_of_the_paper():
    params = MLP(1024, 19).init(torch.tensor([1]))
    assert sum(v[0].numel() for v in params.values()) == 1024 * 256 + 256 + 256 * 64 + 64 + 64 * 19 + 19  # 0.28 M


def test_hidden_layers_of_the_visual_mlp_may_be_sigmoids_as_in_the_authors_code():
    c = case("visual-mlp", [{"activation": "sigmoid"}])
    x, w = c.batch.features[0], {name: value[0] for name, value in c.params.items()}
    h = x / x.norm(dim=1, keepdim=True) * x.shape[1] ** 0.5
    for layer in ("hidden1", "hidden2"):
        h = torch.sigmoid(h @ w[f"{layer}.weight"] + w[f"{layer}.bias"])
    expected = h @ w["head.weight"] + w["head.bias"]
    torch.testing.assert_close(c.method.logits(c.params, c.batch.features)[0, 0], expected, rtol=1e-12, atol=1e-12)
    assert float(w["hidden2.weight"].std()) == pytest.approx(256**-0.5, rel=0.05)
    with pytest.raises(MethodError, match="activation 'tanh': expected relu or sigmoid"):
        case("visual-mlp", [{"activation": "tanh"}])


def test_initial_scale_and_seeds():
    params = linear_init(torch.tensor([1, 2, 1]), "layer", 400, 300, gain=2.0)
    weight = params["layer.weight"]
    assert abs(float(weight[0].std()) - (2 / 400) ** 0.5) < 1e-3
    assert torch.equal(weight[0], weight[2])
    assert not torch.allclose(weight[0], weight[1])


def test_heads_differ_from_each_other():
    heads = Heads("h", 2, 5, 3)
    params = heads.init(torch.tensor([4]))
    assert not torch.allclose(params["h.0.weight"], params["h.1.weight"])
    assert heads(params, torch.ones(1, 7, 5)).shape == (1, 2, 7, 3)


class PixelNet:
    """Another network altogether: a linear map of 2×3×3 images, under other names."""

    n_features, n_classes, head, frozen = 10, 3, ("top",), ()

    def init(self, seeds):
        return {"bottom": linear_init(seeds, "bottom", 18, 10)["bottom.weight"],
                "top": linear_init(seeds, "top", 10, 3)["top.weight"]}  # fmt: skip

    def representation(self, params, x):
        return x.flatten(-3) @ params["bottom"]

    def hidden(self, params, representation):
        return torch.tanh(representation)

    def features(self, params, x):
        return self.hidden(params, self.representation(params, x))

    def classify(self, params, h):
        return h @ params["top"]


@pytest.mark.parametrize("name", METHODS)
def test_every_algorithm_trains_any_network(name):
    task = case(name).method.task
    cls = get_method(name)
    weak = {"anneal_share": 1.0} if "anneal_share" in cls.space else {}  # plain SGD would not survive the full penalty
    config = default_config(cls.space, CLIP, **weak)
    method = cls(task, Runs.stack(cls.space, [config], [3]), network=PixelNet())
    method.begin(40)
    params = method.init(None)
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(60)[None] % 3
    x = torch.randn(1, 60, 2, 3, 3, generator=g)
    x[0, :, 0, 0] += 2 * torch.nn.functional.one_hot(labels[0], 3)
    environments = (torch.arange(60)[None] // 3) % 3
    optimizer, rate = SGD(), torch.tensor([0.05])
    state = optimizer.init(params)
    first = last = None
    for step in range(40):
        grads, terms = method.gradients(params, Batch(x, labels, environments, 60, step))
        optimizer.step(params, grads, state, rate, {})
        first, last = first if first is not None else float(terms["ce"]), float(terms["ce"])
    right = (method.logits(params, x)[0, 0].argmax(-1) == labels[0]).float().mean()
    assert last < 0.8 * first
    assert right > 0.8
