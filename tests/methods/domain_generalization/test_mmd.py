"""MMD²: against the double sum of its definition."""

import itertools

import numpy as np
import torch
from visual_setup import case

from bayescal.methods.domain_generalization.mmd import environment_mmd

BANDWIDTHS = [10.0**k for k in range(-3, 4)]


def kernel(a, b) -> float:
    return sum(np.exp(-w * float(((a - b) ** 2).sum())) for w in BANDWIDTHS)


def mmd(x, y) -> float:
    def mean(p, q):
        return np.mean([kernel(a, b) for a in p for b in q])

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def test_value_against_a_double_sum():
    g = torch.Generator().manual_seed(1)
    h = torch.randn(2, 14, 3, generator=g, dtype=torch.float64)
    e = torch.randint(3, (2, 14), generator=g)
    e[1] = e[1].clamp(max=1)  # the second row has two of the three environments
    value = environment_mmd(h, e, 3)
    for r in range(2):
        groups = [h[r][e[r] == k].numpy() for k in e[r].unique()]
        expected = np.mean([mmd(a, b) for a, b in itertools.combinations(groups, 2)])
        assert abs(float(value[r]) - expected) < 1e-10


def test_equal_environments_have_none_and_one_environment_has_none():
    h = torch.randn(1, 4, 3, dtype=torch.float64).repeat(1, 2, 1)
    e = torch.tensor([[0] * 4 + [1] * 4])
    assert abs(float(environment_mmd(h, e, 2))) < 1e-10
    assert float(environment_mmd(h, torch.zeros(1, 8, dtype=torch.long), 2)) == 0.0


def test_objective():
    c = case("mmd", [{"lambda_mmd": 0.3}, {"lambda_mmd": 5.0}])
    terms = c.method.loss(c.params, c.batch)
    for r, gamma in enumerate((0.3, 5.0)):
        net, x, y, e = c.row(r)
        h = net.features(x).detach().numpy()
        penalty = np.mean([mmd(h[e == a], h[e == b]) for a, b in itertools.combinations(range(3), 2)])
        assert abs(float(terms["total"][r]) - float(net.loss(x, y).detach()) - gamma * penalty) < 1e-9
