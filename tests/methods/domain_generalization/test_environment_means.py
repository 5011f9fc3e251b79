"""Averages per environment in a pooled batch."""

import torch
from visual_setup import F64

from bayescal.methods.domain_generalization._environments import environment_means, scale_gradient


def test_means_of_crowded_single_and_absent_environments():
    values = torch.tensor([[1.0, 2.0, 6.0, 5.0], [4.0, 4.0, 4.0, 0.0]])
    environments = torch.tensor([[0, 0, 0, 2], [1, 1, 1, 1]])
    means, present = environment_means(values, environments, 3)
    assert means.tolist() == [[3.0, 0.0, 5.0], [0.0, 3.0, 0.0]]
    assert present.tolist() == [[1, 0, 1], [0, 1, 0]]


def test_scaled_gradient_keeps_the_value():
    x = torch.randn(5, dtype=F64, requires_grad=True)
    y = scale_gradient(x, -0.3)
    torch.testing.assert_close(y, x)
    (grad,) = torch.autograd.grad((y**2).sum(), x)
    torch.testing.assert_close(grad, -0.6 * x.detach())
