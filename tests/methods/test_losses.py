"""Closed forms against autograd's double backward and torch.distributions, in float64 to 1e-10."""

import pytest
import torch
from torch.nn import functional as F

from bayescal.methods import losses
from bayescal.methods.text.bayes_cal import standard_deviation

R, S, B, C, E, D = 2, 3, 9, 5, 4, 12
SCALE = 17.0


@pytest.fixture(params=[C, D + 3], ids=["few names", "more names than dimensions"])
def case(request):
    g = torch.Generator().manual_seed(0)
    randn = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    environments = torch.randint(E - 1, (R, 1, B), generator=g)  # environment E−1 is absent
    return {
        "images": randn(R, 1, B, D),
        "text_c": randn(R, S, request.param, D).requires_grad_(),
        "text_e": randn(R, S, E, D).requires_grad_(),
        "y": torch.randint(request.param, (R, 1, B), generator=g),
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
    logits = losses.cosine_logits(case["images"], case["text_c"], SCALE)
    ours = losses.cross_entropy(logits, case["y"])
    for at, image, text, _, y, _ in rows(case):
        assert torch.allclose(logits[at], plain_logits(image, text), atol=1e-10)
        assert torch.allclose(ours[at], F.cross_entropy(plain_logits(image, text), y), atol=1e-10)


def test_irm_equals_double_backward(case):
    logits = losses.cosine_logits(case["images"], case["text_c"], SCALE)
    ours = losses.irm_penalty(logits, case["y"], case["e"], E)
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
    logits_c = losses.cosine_logits(case["images"], case["text_c"], SCALE)
    logits_e = losses.cosine_logits(case["images"], case["text_e"], SCALE)
    ours = losses.orthogonality((case["text_c"], logits_c, case["y"]), (case["text_e"], logits_e, case["e"]), SCALE)
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
    logits = losses.cosine_logits(image, text, 1e4)
    side = (text, logits, torch.zeros(1, dtype=torch.long))
    value = losses.orthogonality(side, side, 1e4)
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
        sides = ((x, losses.cosine_logits(f, x, 200.0), label) for x in (t, o))
        return losses.orthogonality(*sides, 200.0)

    assert 1 - float(losses.cosine_logits(image, text, 200.0).softmax(-1)[0, 0]) < 1e-8
    assert float(value(torch.float64)) > 0.01
    assert float(value(torch.float32)) == pytest.approx(float(value(torch.float64)), rel=1e-4)


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("cross_entropy", [1e-6, 1e-7, 1e-8, 1e-9])
def test_orthogonality_of_confident_data_at_clips_scale(dtype, rel, cross_entropy):
    """Two gradients of 1e-9 each have a product of squares of 1e-36: no absolute bound may reach into that."""
    g = torch.Generator().manual_seed(5)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=g, dtype=torch.float64)).Q
    text, other = basis[1:5], 0.8 * basis[5:8] + 0.6 * basis[1:4]  # classes and environments have something in common
    labels = torch.arange(3).repeat(4)
    noise = 0.1 * torch.randn(12, 16, generator=g, dtype=torch.float64)

    def sides(spread: float):
        t, o = basis[0] + spread * text, basis[0] + spread * other
        return t[labels] + o[labels] + spread * noise, t, o

    def both_losses(spread: float) -> float:
        f, t, o = sides(spread)
        return float(
            torch.stack([losses.cross_entropy(losses.cosine_logits(f, x, 100.0), labels) for x in (t, o)]).amax()
        )

    low, high = 0.01, 3.0  # the further apart the names, the surer every answer
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if both_losses(middle) > cross_entropy else (low, middle)
    assert both_losses(high) == pytest.approx(cross_entropy, rel=0.01)

    f, t, o = sides(high)
    f = f.requires_grad_()
    reference = [t.clone().requires_grad_(), o.clone().requires_grad_()]
    gradients = []
    for x in reference:
        # log CE, whose gradient has CE's direction and a length that cosine_similarity can divide by
        logits = 100.0 * F.cosine_similarity(f[:, None], x[None], dim=-1)
        others = logits.masked_fill(F.one_hot(labels, len(x)).bool(), -torch.inf).logsumexp(-1)
        own = logits.gather(1, labels[:, None])[:, 0]
        gradients.append(torch.autograd.grad(F.softplus(others - own).log().sum(), f, create_graph=True)[0])
    expected = F.cosine_similarity(*gradients, dim=-1).square().mean()
    expected.backward()
    assert float(expected.detach()) > 0.01

    ours = [x.detach().to(dtype).requires_grad_() for x in (t, o)]
    value = losses.orthogonality(
        *((x, losses.cosine_logits(f.detach().to(dtype), x, 100.0), labels) for x in ours), 100.0
    )
    value.backward()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=rel)
    for mine, right in zip(ours, reference, strict=True):
        assert torch.allclose(mine.grad.double(), right.grad, rtol=0, atol=10 * rel * float(right.grad.abs().max()))


def test_orthogonality_of_a_single_name_is_zero():
    """One environment asks for nothing, so there is no angle to it."""
    g = torch.Generator().manual_seed(6)
    image, text, single = (torch.randn(n, 6, generator=g).requires_grad_() for n in (5, 4, 1))
    sides = ((x, losses.cosine_logits(image, x, 10.0), torch.zeros(5, dtype=torch.long)) for x in (text, single))
    value = losses.orthogonality(*sides, 10.0)
    value.backward()
    assert value.item() == 0.0
    assert bool(torch.isfinite(text.grad).all() and torch.isfinite(image.grad).all())


def test_orthogonality_of_a_side_with_itself_is_one():
    g = torch.Generator().manual_seed(4)
    image, text = torch.randn(5, 6, generator=g), torch.randn(4, 6, generator=g)
    side = (text, losses.cosine_logits(image, text, 10.0), torch.tensor([0, 1, 2, 3, 0]))
    assert float(losses.orthogonality(side, side, 10.0)) == pytest.approx(1.0, abs=1e-5)


def test_kl_is_torch_distributions():
    g = torch.Generator().manual_seed(1)
    mean, prior_mean = torch.randn(2, 50, generator=g, dtype=torch.float64)
    std, prior_std = torch.rand(2, 50, generator=g, dtype=torch.float64) + 0.01
    ours = losses.gaussian_kl(mean, std, prior_mean, prior_std)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(prior_mean, prior_std)
    )
    assert torch.allclose(ours, expected, atol=1e-10, rtol=1e-10)
    assert float(losses.gaussian_kl(mean, std, mean, std).abs().max()) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [-20.0, -29.0, -52.0, -104.0, -1e4])
def test_kl_of_a_vanishing_scale_has_a_finite_gradient(dtype, rho):
    """σ = softplus(ρ) is zero in float32 from ρ = −104 on, and its square from ρ = −52 on."""
    leaf = torch.tensor([rho], dtype=dtype, requires_grad=True)
    zero, prior = torch.zeros(1, dtype=dtype), torch.full((1,), 0.02, dtype=dtype)
    kl = losses.gaussian_kl(zero, standard_deviation(leaf), zero, prior)
    kl.backward()
    assert bool(torch.isfinite(kl))
    assert float(leaf.grad) == pytest.approx(-1.0, abs=1e-3)  # d log(1/σ) / dρ: it leads back to the prior


def test_the_bound_of_rho_changes_no_scale_above_it():
    rho = torch.linspace(-29.9, 5.0, 50, dtype=torch.float64)
    assert torch.equal(standard_deviation(rho), F.softplus(rho))


@pytest.mark.parametrize("names", [4, 5], ids=["an even number of rows", "an odd number of rows"])
def test_one_image_alone_gets_the_logits_it_gets_among_others(names):
    g = torch.Generator().manual_seed(0)
    images = torch.randn(3, D, generator=g, dtype=torch.float64)
    weights = torch.randn(1, S, names, D, generator=g, dtype=torch.float64)
    together = losses.weighted_logits(images, weights)  # (1, S, 3, names)
    expected = F.normalize(images, dim=-1) @ weights.transpose(-1, -2)
    assert torch.allclose(together, expected, atol=1e-12)
    for i in range(3):
        alone = losses.weighted_logits(images[i : i + 1], weights)
        assert alone.shape == (1, S, 1, names)
        assert torch.allclose(alone, expected[..., i : i + 1, :], atol=1e-12)
