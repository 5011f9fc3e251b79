"""Stacked optimisers against torch.optim, row by row."""

import pytest
import torch

from bayescal.engine.optim import SGD, Adam, AdamW, cosine_with_warmup

RATES = torch.tensor([0.1, 0.01, 0.3], dtype=torch.float64)
DECAY = torch.tensor([0.0, 0.1, 0.05], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SGD(0.9), lambda p, lr, wd: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=wd)),
     (Adam(), lambda p, lr, wd: torch.optim.Adam(p, lr, weight_decay=wd)),
     (AdamW(), lambda p, lr, wd: torch.optim.AdamW(p, lr, weight_decay=wd))],
    ids=["sgd", "adam", "adamw"],
)  # fmt: skip
def test_equal_to_torch(ours, theirs):
    g = torch.Generator().manual_seed(0)
    start = {"a": torch.randn(3, 4, generator=g, dtype=torch.float64), "b": torch.randn(3, 2, 2, generator=g).double()}
    steps = [{n: torch.randn(v.shape, generator=g, dtype=torch.float64) for n, v in start.items()} for _ in range(7)]
    params = {n: v.clone() for n, v in start.items()}
    state = ours.init(params)
    for grads in steps:
        ours.step(params, grads, state, RATES, {"a": DECAY})  # decay on "a" alone
    for row in range(3):
        for name, value in start.items():
            p = value[row].clone().requires_grad_()
            decay = float(DECAY[row]) if name == "a" else 0.0
            reference = theirs([p], float(RATES[row]), decay)
            for grads in steps:
                p.grad = grads[name][row]
                reference.step()
            assert torch.allclose(params[name][row], p.detach(), atol=1e-12)


@pytest.mark.parametrize("ours", [SGD(), Adam()], ids=["sgd", "adam"])
def test_parameters_that_move_in_turn_equal_optimisers_of_their_own(ours):
    """Each at its own rate; "a" moves in every third step alone, and its count of steps is its own."""
    g = torch.Generator().manual_seed(1)
    start = {n: torch.randn(3, 4, generator=g, dtype=torch.float64) for n in "ab"}
    steps = [torch.randn(3, 4, generator=g, dtype=torch.float64) for _ in range(12)]
    together = {n: v.clone() for n, v in start.items()}
    state = ours.init(together)
    for i, grad in enumerate(steps):
        ours.step(together, {"ba"[i % 3 == 0]: grad}, state, RATES, {}, {"b": 0.1})
    for name, rates, own in (("a", RATES, steps[::3]), ("b", 0.1 * RATES, [g for i, g in enumerate(steps) if i % 3])):
        alone = {name: start[name].clone()}
        state = ours.init(alone)
        for grad in own:
            ours.step(alone, {name: grad}, state, rates, {})
        assert torch.allclose(together[name], alone[name], atol=1e-12)


def test_parameters_without_gradient_stay():
    params = {"a": torch.ones(1, 2), "b": torch.ones(1, 2)}
    SGD().step(params, {"a": torch.ones(1, 2)}, SGD().init(params), torch.tensor([0.5]), {"b": torch.ones(1)})
    assert torch.equal(params["b"], torch.ones(1, 2))
    assert torch.equal(params["a"], torch.full((1, 2), 0.5))


def test_schedule():
    base = torch.tensor([0.02, 1e-6])
    rates = torch.stack([cosine_with_warmup(base, epoch, 30) for epoch in range(30)])
    assert torch.allclose(rates[0], torch.tensor([1e-5, 1e-6]))  # warm-up never exceeds the base rate
    assert torch.allclose(rates[1], base)
    assert bool((rates[1:].diff(dim=0) < 0).all())
    assert 0 < float(rates[-1, 0]) < 1e-3
    assert torch.equal(cosine_with_warmup(base, 0, 1), base)  # a single epoch has no time to warm up
