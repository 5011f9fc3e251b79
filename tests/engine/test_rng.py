"""Counter-based random numbers: right distribution, independent of the stack around them, repeatable."""

import numpy as np
import pytest
import scipy.stats
import torch

from bayescal.engine import rng


def test_splitmix64_reference_values():
    # The published SplitMix64 stream for state 1234567 (values from its reference implementation).
    state = torch.tensor([1234567])
    z = rng._mix(state + torch.arange(1, 6) * rng._GAMMA)
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(v) % 2**64 for v in z] == expected


def test_normal_numbers_are_standard_normal():
    x = rng.normal(torch.tensor([7, 8]), "noise", 3, (100_000,)).double().numpy()
    for row in x:
        assert scipy.stats.kstest(row, "norm").pvalue > 1e-3
        assert abs(scipy.stats.kurtosis(row)) < 0.1
    assert abs(np.corrcoef(x)[0, 1]) < 0.02  # rows are independent
    half = x.shape[1] // 2
    assert abs(np.corrcoef(x[0, :half], x[0, half:])[0, 1]) < 0.02  # so are the two halves of Box–Muller


@pytest.mark.parametrize("other", [("noise", 4), ("noise2", 3)])
def test_streams_and_steps_are_independent(other):
    seeds = torch.tensor([7])
    a = rng.normal(seeds, "noise", 3, (50_000,))[0]
    b = rng.normal(seeds, *other, (50_000,))[0]
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


def test_neighbouring_seeds_are_independent():
    x = rng.normal(torch.arange(200), "noise", 0, (64,)).double()
    assert abs(float(x.mean())) < 0.05
    correlation = np.corrcoef(x.numpy())
    assert np.abs(correlation[np.triu_indices(200, 1)]).max() < 0.65  # 64 numbers: chance stays below


def test_a_row_does_not_depend_on_its_neighbours():
    alone = rng.normal(torch.tensor([5]), "s", 9, (3, 4))
    stacked = rng.normal(torch.tensor([1, 5, 2]), "s", 9, (3, 4))
    assert torch.equal(alone[0], stacked[1])


def test_step_may_be_a_tensor():
    seeds = torch.tensor([5])
    assert torch.equal(rng.bits(seeds, "s", 12, 8), rng.bits(seeds, "s", torch.tensor(12), 8))


def test_integers_are_uniform():
    x = rng.integers(torch.tensor([3]), "view", 1, 60_000, 7)[0].numpy()
    assert scipy.stats.chisquare(np.bincount(x, minlength=7)).pvalue > 1e-3


def test_permutations_are_uniform_permutations():
    x = rng.permutations(torch.arange(12_000), "order", 0, 3)
    assert bool((x.sort(1).values == torch.arange(3)).all())
    code = (x * torch.tensor([9, 3, 1])).sum(1).numpy()
    counts = np.unique(code, return_counts=True)[1]
    assert len(counts) == 6
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
