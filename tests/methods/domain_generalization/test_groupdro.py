"""GroupDRO: the exponentiated-gradient weights, step by step, and the loss under them."""

import numpy as np
import torch
from torch.nn import functional as F
from visual_setup import PlainNet, case, full_batch_training


def risks_of(net, x, y, e):
    return {int(g): F.cross_entropy(net(x[e == g]), y[e == g]) for g in e.unique()}


def test_weights_and_gradient_over_three_steps():
    etas = (0.5, 2.0)
    c = case("groupdro", [{"eta": eta} for eta in etas], absent=0)
    expected = np.full((2, 3), 1 / 3)
    for _ in range(3):
        grads, terms = c.method.gradients(c.params, c.batch)
        for r, eta in enumerate(etas):
            net, x, y, e = c.row(r)
            risks = risks_of(net, x, y, e)
            for g, risk in risks.items():
                expected[r, g] *= np.exp(eta * float(risk.detach()))
            expected[r] /= expected[r].sum()
            total = sum(expected[r, g] * risk for g, risk in risks.items())
            total.backward()
            torch.testing.assert_close(terms["total"][r], total.detach(), rtol=1e-6, atol=0)
            for name, grad in grads.items():
                torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(c.params["q"].numpy(), expected, rtol=1e-6)
    assert expected[0, 0] < 1 / 3 < expected.max()  # the absent environment lost, the worst one gained
    assert "q" not in grads


def test_training_equals_a_plain_loop():
    t = full_batch_training("groupdro", (0, 2), epochs=5, eta=1.0, learning_rate=0.01)
    q = t.start.pop("q")
    net = PlainNet(t.start)
    adam = torch.optim.AdamW(list(net.weights.values()), lr=0.01, weight_decay=0.0)
    for _ in range(5):
        risks = torch.stack(list(risks_of(net, t.x, t.y, t.e).values()))
        q = q * torch.exp(risks.detach())
        q = q / q.sum()
        adam.zero_grad()
        (q * risks).sum().backward()
        adam.step()
    torch.testing.assert_close(t.end["q"], q, rtol=1e-7, atol=0)
    for name, value in net.weights.items():
        torch.testing.assert_close(t.end[name], value.detach(), rtol=0, atol=1e-7)


def test_a_row_that_is_not_finite_keeps_its_weights():
    c = case("groupdro", [{}, {}])
    c.batch.features[1, 0, 0] = float("nan")
    c.method.gradients(c.params, c.batch)
    equal = torch.full((3,), 1 / 3, dtype=c.params["q"].dtype)
    torch.testing.assert_close(c.params["q"][1], equal)
    assert float((c.params["q"][0] - equal).abs().max()) > 1e-4
