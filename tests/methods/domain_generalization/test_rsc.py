"""RSC: which features and samples are muted, against sorting by hand."""

import numpy as np
import torch
from torch.nn import functional as F
from visual_setup import case


def reference_mask(net, h, y, features: float, samples: float) -> np.ndarray:
    """Zero for the top features of the samples whose confidence drops most."""
    h = h.detach().requires_grad_()
    logits = net.head(h)
    (gradient,) = torch.autograd.grad(logits[range(len(y)), y].sum(), h)
    n_features, n_samples = round(features * h.shape[1]), round(samples * len(y))
    keep = np.ones(h.shape)
    for i, row in enumerate(gradient.numpy()):
        keep[i, np.argsort(-row, kind="stable")[:n_features]] = 0
    before = logits.softmax(1)[range(len(y)), y]
    after = net.head(h * torch.from_numpy(keep)).softmax(1)[range(len(y)), y]
    challenged = np.argsort(-(before - after).detach().numpy(), kind="stable")[:n_samples]
    mask = np.ones(h.shape)
    mask[challenged] = keep[challenged]
    return mask


def test_mask_and_gradient():
    shares = ((1 / 3, 0.25), (0.5, 0.5))
    c = case("rsc", [{"muted_features": p, "challenged_samples": b} for p, b in shares])
    grads, _ = c.method.gradients(c.params, c.batch)
    h = c.method.network.features(c.params, c.batch.features)
    masks = c.method.mask(c.params, h.detach(), c.batch.labels)
    for r, (p, b) in enumerate(shares):
        net, x, y, _ = c.row(r)
        expected = reference_mask(net, net.features(x), y, p, b)
        np.testing.assert_array_equal(masks[r].numpy(), expected)
        assert (expected == 0).sum() == round(p * 64) * round(b * 24)
        F.cross_entropy(net.head(net.features(x) * torch.from_numpy(expected)), y).backward()
        for name, grad in grads.items():
            torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_nothing_is_muted_at_zero_or_in_prediction():
    c = case(
        "rsc", [{"muted_features": 0.0, "challenged_samples": 0.5}, {"muted_features": 0.5, "challenged_samples": 0.0}]
    )
    net, x, y, _ = c.row(0)
    terms = c.method.loss(c.params, c.batch)
    torch.testing.assert_close(terms["ce"][0], net.loss(x, y).detach())
    net, x, y, _ = c.row(1)
    torch.testing.assert_close(terms["ce"][1], net.loss(x, y).detach())
    torch.testing.assert_close(c.method.logits(c.params, c.batch.features)[1, 0], net(x).detach())
