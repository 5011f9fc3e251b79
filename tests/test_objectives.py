"""Closed forms against autograd's double backward and torch.distributions, in float64 to 1e-10."""

import pytest
import torch
from torch.nn import functional as F

from bayescal import objectives

R, S, B, C, E, D = 2, 3, 9, 5, 4, 12
SCALE = 17.0


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(0)
    randn = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    environments = torch.randint(E - 1, (R, 1, B), generator=g)  # environment E−1 is absent
    return {
        "images": randn(R, 1, B, D),
        "text_c": randn(R, S, C, D).requires_grad_(),
        "text_e": randn(R, S, E, D).requires_grad_(),
        "y": torch.randint(C, (R, 1, B), generator=g),
        "e": environments,
    }


def rows(case):
    """Every (run, draw) as a plain single problem."""
    for r in range(R):
        for s in range(S):
            yield (
                (r, s),
                case["images"][r, 0],
                case["text_c"][r, s],
                case["text_e"][r, s],
                case["y"][r, 0],
                case["e"][r, 0],
            )


def plain_logits(image, text):
    return SCALE * F.cosine_similarity(image[:, None], text[None], dim=-1)


def test_logits_and_cross_entropy_are_torchs(case):
    logits = objectives.cosine_logits(case["images"], case["text_c"], SCALE)
    ours = objectives.cross_entropy(logits, case["y"])
    for at, image, text, _, y, _ in rows(case):
        assert torch.allclose(logits[at], plain_logits(image, text), atol=1e-10)
        assert torch.allclose(ours[at], F.cross_entropy(plain_logits(image, text), y), atol=1e-10)


def test_irm_equals_double_backward(case):
    logits = objectives.cosine_logits(case["images"], case["text_c"], SCALE)
    ours = objectives.irm_penalty(logits, case["y"], case["e"], E)
    grads = torch.autograd.grad(ours.sum(), case["text_c"])[0]
    for at, image, text, _, y, e in rows(case):
        text = text.detach().requires_grad_()
        z = plain_logits(image, text)
        penalty = 0.0
        for g in e.unique():
            w = torch.ones((), dtype=torch.float64, requires_grad=True)
            loss = F.cross_entropy(w * z[e == g], y[e == g])
            penalty = penalty + torch.autograd.grad(loss, w, create_graph=True)[0].square()
        assert torch.allclose(ours[at], penalty, atol=1e-10, rtol=1e-10)
        assert torch.allclose(grads[at], torch.autograd.grad(penalty, text)[0], atol=1e-10, rtol=1e-10)


def test_orthogonality_equals_double_backward(case):
    logits_c = objectives.cosine_logits(case["images"], case["text_c"], SCALE)
    logits_e = objectives.cosine_logits(case["images"], case["text_e"], SCALE)
    ours = objectives.orthogonality((case["text_c"], logits_c, case["y"]), (case["text_e"], logits_e, case["e"]), SCALE)
    grads = torch.autograd.grad(ours.sum(), [case["text_c"], case["text_e"]])
    assert all(float(g.abs().max()) > 1e-6 for g in grads)  # it trains both branches
    for at, image, text_c, text_e, y, e in rows(case):
        text_c, text_e = text_c.detach().requires_grad_(), text_e.detach().requires_grad_()
        f = image.clone().requires_grad_()
        sum_ce = lambda text, label: F.cross_entropy(plain_logits(f, text), label, reduction="sum")  # noqa: E731,B023
        g_c = torch.autograd.grad(sum_ce(text_c, y), f, create_graph=True)[0]
        g_e = torch.autograd.grad(sum_ce(text_e, e), f, create_graph=True)[0]
        expected = F.cosine_similarity(g_c, g_e, dim=-1).square().mean()
        assert torch.allclose(ours[at], expected, atol=1e-10, rtol=1e-10)
        reference = torch.autograd.grad(expected, [text_c, text_e])
        assert torch.allclose(grads[0][at], reference[0], atol=1e-10, rtol=1e-9)
        assert torch.allclose(grads[1][at], reference[1], atol=1e-10, rtol=1e-9)


def test_orthogonality_of_a_perfect_prediction_is_finite():
    """p = onehot makes the gradient vanish: the term and its gradient must stay finite."""
    image = torch.eye(4)[:1]
    text = torch.eye(4)[:2].requires_grad_()
    logits = objectives.cosine_logits(image, text, 1e4)
    side = (text, logits, torch.zeros(1, dtype=torch.long))
    value = objectives.orthogonality(side, side, 1e4)
    value.backward()
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(text.grad).all())


def test_orthogonality_of_a_confident_prediction_keeps_its_digits():
    """In float32, p_y − 1 is zero long before the other probabilities are: the angle must not depend on it."""
    g = torch.Generator().manual_seed(3)
    image, text, other = (torch.randn(n, 6, generator=g, dtype=torch.float64) for n in (1, 4, 3))
    image = 3 * text[:1] + 0.3 * image
    label = torch.zeros(1, dtype=torch.long)

    def value(dtype: torch.dtype) -> torch.Tensor:
        f, t, o = (x.to(dtype) for x in (image, text, other))
        sides = ((x, objectives.cosine_logits(f, x, 200.0), label) for x in (t, o))
        return objectives.orthogonality(*sides, 200.0)

    assert 1 - float(objectives.cosine_logits(image, text, 200.0).softmax(-1)[0, 0]) < 1e-8
    assert float(value(torch.float64)) > 0.01
    assert float(value(torch.float32)) == pytest.approx(float(value(torch.float64)), rel=1e-4)


def test_orthogonality_of_a_side_with_itself_is_one():
    g = torch.Generator().manual_seed(4)
    image, text = torch.randn(5, 6, generator=g), torch.randn(4, 6, generator=g)
    side = (text, objectives.cosine_logits(image, text, 10.0), torch.tensor([0, 1, 2, 3, 0]))
    assert float(objectives.orthogonality(side, side, 10.0)) == pytest.approx(1.0, abs=1e-5)


def test_kl_is_torch_distributions():
    g = torch.Generator().manual_seed(1)
    mean, prior_mean = torch.randn(2, 50, generator=g, dtype=torch.float64)
    std, prior_std = torch.rand(2, 50, generator=g, dtype=torch.float64) + 0.01
    ours = objectives.gaussian_kl(mean, std, prior_mean, prior_std)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(prior_mean, prior_std)
    )
    assert torch.allclose(ours, expected, atol=1e-10, rtol=1e-10)
    assert float(objectives.gaussian_kl(mean, std, mean, std).abs().max()) == 0.0
