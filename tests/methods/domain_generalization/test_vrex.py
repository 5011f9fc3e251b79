"""VREx: the variance of the environments' risks, over those that are in the batch."""

import numpy as np
import torch
from torch.nn import functional as F
from visual_setup import case


def test_variance_and_gradient_against_a_plain_loop():
    c = case("vrex", [{"lambda_variance": 40.0, "anneal_share": 0}] * 2, absent=2)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, present in enumerate(((0, 1), (0, 1, 2))):
        net, x, y, e = c.row(r)
        assert sorted(e.unique().tolist()) == list(present)
        risks = [F.cross_entropy(net(x[e == g]), y[e == g]) for g in present]
        assert abs(float(terms["variance"][r]) - np.var([float(v.detach()) for v in risks])) < 1e-12
        mean = sum(risks) / len(risks)
        (net.loss(x, y) + 40.0 * sum((v - mean) ** 2 for v in risks) / len(risks)).backward()
        for name, grad in grads.items():
            torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_annealing_is_that_of_irm():
    method = case("vrex", [{"lambda_variance": 40.0, "anneal_share": 0.2}]).method
    method.begin(10)
    assert [float(method.weight(step)) for step in (1, 2)] == [1.0, 40.0]
    assert method.resets(1) is None
    assert method.resets(2).tolist() == [True]
