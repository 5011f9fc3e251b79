"""SagNet: what each of the three losses trains, and the styles they are computed on."""

import numpy as np
import torch
from torch.nn import functional as F
from visual_setup import case

from bayescal.engine import rng
from bayescal.methods.domain_generalization._environments import uniform
from bayescal.methods.domain_generalization.sagnet import mix_style, swap_content

BODY = {"hidden1.weight", "hidden1.bias", "hidden2.weight", "hidden2.bias"}
HEAD, STYLE = {"head.weight", "head.bias"}, {"style.0.weight", "style.0.bias"}
EPS = 1e-5


def style(h):
    return h.mean(1, keepdims=True), h.var(1, keepdims=True)


def draws(c, r):
    seeds, size = c.method.runs.seeds, c.batch.labels.shape[1]
    other = rng.permutations(seeds, "sagnet/other", c.batch.step, size)[r]
    return other, uniform(seeds, "sagnet/alpha", c.batch.step, (size, 1))[r].double()


def test_three_losses_against_a_reference():
    """Gradients from three separate backward passes, each to the parameters it may train."""
    weights = (0.1, 3.0)
    c = case("sagnet", [{"lambda_adversary": w} for w in weights], step=4)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, weight in enumerate(weights):
        net, x, y, _ = c.row(r)
        other, alpha = draws(c, r)
        h = net.features(x)
        mean, var = style(h)
        content = (h - mean) / (var + EPS) ** 0.5
        mixed_mean, mixed_var = (alpha * s + (1 - alpha) * s[other] for s in (mean, var))
        mixed = content * (mixed_var + EPS) ** 0.5 + mixed_mean
        content_loss = F.cross_entropy(net.head(mixed), y)
        swapped = content[other].detach() * (var + EPS) ** 0.5 + mean
        guess = net.head(swapped, "style.0")
        style_loss, adversary = F.cross_entropy(guess, y), -guess.log_softmax(1).mean()
        torch.testing.assert_close(terms["ce"][r], content_loss.detach())
        torch.testing.assert_close(terms["style"][r], style_loss.detach())
        torch.testing.assert_close(terms["adversary"][r], adversary.detach())
        for name in BODY | HEAD | STYLE:
            w = net.weights[name]
            parts = {"content": content_loss, "style": style_loss, "adversary": weight * adversary}
            trained_by = {"content", "adversary"} if name in BODY else {"content"} if name in HEAD else {"style"}
            expected = sum(torch.autograd.grad(parts[p], w, retain_graph=True)[0] for p in trained_by)
            torch.testing.assert_close(grads[name][r], expected, rtol=1e-8, atol=1e-12)


def moved(a, b):
    return {n for n in a if float((a[n] - b[n]).abs().max()) > 1e-12}


def test_the_adversary_trains_the_features_and_nothing_else():
    a, _ = (c := case("sagnet", [{"lambda_adversary": 0.1}])).method.gradients(c.params, c.batch)
    b, _ = (c := case("sagnet", [{"lambda_adversary": 1.0}])).method.gradients(c.params, c.batch)
    assert moved(a, b) == BODY


def test_the_style_head_never_reaches_the_content():
    """Another style head changes the features' gradient through the adversary alone: with weight 0, not at all."""
    c = case("sagnet", [{"lambda_adversary": 0.0}])
    a, _ = c.method.gradients(c.params, c.batch)
    b, _ = c.method.gradients({**c.params, "style.0.weight": c.params["style.0.weight"] + 1.0}, c.batch)
    assert moved(a, b) <= STYLE


def test_mixing_keeps_content_and_changes_style():
    c = case("sagnet", size=24)
    other, alpha = draws(c, 0)
    h = torch.randn(1, 24, 9, dtype=torch.float64)
    mixed, swapped = mix_style(h, other[None], alpha[None])[0], swap_content(h, other[None])[0]
    for i in range(24):
        np.testing.assert_allclose(float(np.corrcoef(mixed[i], h[0, i])[0, 1]), 1.0, atol=1e-9)
        np.testing.assert_allclose(float(np.corrcoef(swapped[i], h[0, other[i]])[0, 1]), 1.0, atol=1e-9)
        np.testing.assert_allclose(float(swapped[i].mean()), float(h[0, i].mean()), atol=1e-9)
    assert len(set(other.tolist())) == 24
    assert 0 <= float(alpha.min()) < 0.3 < 0.7 < float(alpha.max()) < 1
