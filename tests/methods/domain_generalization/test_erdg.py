"""ERDG: every term, and which parameters it moves in which direction."""

import torch
from torch.nn import functional as F
from visual_setup import case

LAMBDAS = {"lambda_discriminator": 0.3, "lambda_cross": 0.2, "lambda_entropy": 0.1}
BODY = ("hidden1.weight", "hidden1.bias", "hidden2.weight", "hidden2.bias")


def heads(net, h, e, y, kind: str, own: bool):
    """Mean over environments of the loss of each one's classifier on its own, or on all other, samples."""
    losses = []
    for g in range(3):
        where = (e == g) if own else (e != g)
        losses.append(F.cross_entropy(net.head(h[where], f"{kind}.{g}"), y[where]) if where.any() else torch.zeros(()))
    return sum(losses) / 3


def test_terms_and_gradients():
    c = case("erdg", [LAMBDAS, {name: 2 * value for name, value in LAMBDAS.items()}], absent=1)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, factor in enumerate((1.0, 2.0)):
        net, x, y, e = c.row(r)
        h = net.features(x)
        parts = {
            "ce": F.cross_entropy(net.head(h), y),
            "discriminator": F.cross_entropy(net.head(h, "discriminator.0"), e),
            "entropy": heads(net, h, e, y, "entropy", own=True),
            "own": heads(net, h, e, y, "cross", own=True),
            "cross": heads(net, h, e, y, "cross", own=False),
        }
        for name, value in parts.items():
            torch.testing.assert_close(terms[name][r], value.detach(), rtol=1e-9, atol=1e-12)
        # What the features get of each term: against the discriminator and the entropy classifiers, with the rest.
        reach = {
            "ce": 1.0,
            "discriminator": -factor * LAMBDAS["lambda_discriminator"],
            "entropy": -factor * LAMBDAS["lambda_entropy"],
            "own": 0.0,
            "cross": factor * LAMBDAS["lambda_cross"],
        }
        gradient = lambda part, name, net=net, parts=parts: torch.autograd.grad(  # noqa: E731
            parts[part], net.weights[name], retain_graph=True, allow_unused=True
        )[0]
        for name in BODY:
            expected = sum(weight * gradient(part, name) for part, weight in reach.items())
            torch.testing.assert_close(grads[name][r], expected, rtol=1e-8, atol=1e-12)
        # Each classifier minimises its own loss in full; T_g learns from its own environment alone.
        trainer = {"head": "ce", "discriminator": "discriminator", "entropy": "entropy", "cross": "own"}
        for name in set(grads) - set(BODY):
            expected = gradient(trainer[name.split(".")[0]], name)
            expected = torch.zeros_like(net.weights[name]) if expected is None else expected
            torch.testing.assert_close(grads[name][r], expected, rtol=1e-8, atol=1e-12)
