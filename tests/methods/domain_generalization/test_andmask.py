"""ANDMask: which components survive, against a loop over components."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from visual_setup import case


def kept_mean(gradients: list[np.ndarray], tau: float) -> np.ndarray:
    """Component by component: the mean if enough of the signs agree, else 0; by the share of those that are kept."""
    out, kept = np.zeros_like(gradients[0]), 0
    for index in np.ndindex(out.shape):
        values = [gradient[index] for gradient in gradients]
        agreement = 0.5 + 0.5 * abs(np.mean(np.sign(values)))
        if agreement >= tau - 1e-9:
            out[index] = sum(values) / len(values)
            kept += 1
    return out * out.size / max(kept, 1)


@pytest.mark.parametrize("taus", [(1.0, 0.6), (2 / 3, 1.0)])
def test_gradient_against_a_loop(taus):
    c = case("andmask", [{"tau": tau} for tau in taus], absent=1)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, tau in enumerate(taus):
        net, x, y, e = c.row(r)
        each = []
        for g in e.unique():
            loss = F.cross_entropy(net(x[e == g]), y[e == g])
            each.append(torch.autograd.grad(loss, list(net.weights.values())))
        assert len(each) == (2 if r == 0 else 3)
        zeroed = 0
        for i, name in enumerate(net.weights):
            expected = kept_mean([gradients[i].numpy() for gradients in each], tau)
            np.testing.assert_allclose(grads[name][r].numpy(), expected, rtol=1e-9, atol=1e-13)
            zeroed += int(((expected == 0) & (sum(abs(g[i].numpy()) for g in each) > 0)).sum())
        assert zeroed > 0
        assert float(terms["total"][r]) == pytest.approx(
            np.mean([float(F.cross_entropy(net(x[e == g]), y[e == g]).detach()) for g in e.unique()])
        )


def test_the_published_threshold_is_the_same_mask():
    """|mean sign| ≥ t keeps what share ≥ (1 + t)/2 keeps, with gradients of exactly zero (dead units) among them."""
    g = torch.Generator().manual_seed(0)
    grads = torch.randn(1, 5, 400, generator=g, dtype=torch.float64)
    grads = grads * (torch.rand(1, 5, 400, generator=g) < 0.7)
    for t in (0.5, 0.7, 1.0):
        method = case("andmask", [{"tau": (1 + t) / 2}]).method
        ours = method.masked(grads, torch.ones(1, 5, dtype=torch.float64)) != 0
        published = grads.sign().mean(1).abs() >= t
        assert torch.equal(ours, published)


def test_gradients_are_divided_by_the_share_that_is_kept():
    """As in the authors' code, parameter by parameter and run by run; where nothing is kept, nothing moves."""
    method = case("andmask", [{"tau": 1.0}] * 3).method
    grads = torch.ones(3, 2, 10, dtype=torch.float64)
    grads[0, 1, :6] = -3.0  # the environments of run 0 disagree on six of ten components
    grads[1, 1] = -3.0  # those of run 1 on all of them
    grads[2] = 0.0  # a dead unit
    ours = method.masked(grads, torch.ones(3, 2, dtype=torch.float64))
    assert ours[0].tolist() == pytest.approx([0.0] * 6 + [2.5] * 4)
    assert ours[1].tolist() == ours[2].tolist() == [0.0] * 10
