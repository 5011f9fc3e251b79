"""IRM: the penalty against autograd's second derivative, and the annealing, which restarts Adam."""

import pytest
import torch
from torch.nn import functional as F
from visual_setup import PlainNet, case, full_batch_training

import tiny
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import draw_config


def reference_penalty(logits, y, e):
    """Σ_g ( d/dw CE(w·z, y) at w = 1 )² by autograd."""
    total = 0.0
    for g in e.unique():
        w = torch.ones((), dtype=logits.dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(w * logits[e == g], y[e == g]), w, create_graph=True)
        total = total + gradient.square()
    return total


def test_gradient_of_the_objective_after_annealing():
    c = case("irm", [{"lambda_irm": 7.0, "anneal_share": 0}, {"lambda_irm": 0.5, "anneal_share": 0}], absent=1)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, weight in enumerate((7.0, 0.5)):
        net, x, y, e = c.row(r)
        penalty = reference_penalty(net(x), y, e)
        (net.loss(x, y) + weight * penalty).backward()
        torch.testing.assert_close(terms["irm"][r], penalty.detach(), rtol=1e-10, atol=0)
        for name, grad in grads.items():
            torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_penalty_weight_changes_at_the_annealing_step_of_each_row():
    method = case("irm", [{"lambda_irm": 50.0, "anneal_share": 0.3}, {"lambda_irm": 9.0, "anneal_share": 0.0}]).method
    method.begin(10)
    assert [method.weight(step).tolist() for step in (0, 2, 3, 4)] == [[1, 9], [1, 9], [50, 9], [50, 9]]
    assert method.resets(2) is None
    assert method.resets(3).tolist() == [True, False]
    assert method.resets(4) is None


def test_training_equals_adam_that_is_made_anew_at_the_annealing_step():
    """Full batches, so that a step is an epoch; six steps, the third with λ and a fresh optimiser."""
    options = {"epochs": 6, "lambda_irm": 30.0, "anneal_share": 0.5, "learning_rate": 0.01}
    t = full_batch_training("irm", **options)
    net = PlainNet(t.start)
    weights = list(net.weights.values())
    for step in range(6):
        if step in (0, 3):
            adam = torch.optim.AdamW(weights, lr=0.01, weight_decay=0.0)
        logits = net(t.x)
        loss = F.cross_entropy(logits, t.y) + (30.0 if step >= 3 else 1.0) * reference_penalty(logits, t.y, t.e)
        adam.zero_grad()
        loss.backward()
        adam.step()
    for name, value in net.weights.items():
        torch.testing.assert_close(t.end[name], value.detach(), rtol=0, atol=1e-7)
    # The comparison can fail: annealed at another step, the outcome is another.
    other = full_batch_training("irm", **{**options, "anneal_share": 0.7})
    assert float((other.end["head.weight"] - t.end["head.weight"]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["irm", "vrex"])
@pytest.mark.parametrize("n_steps", [50, 200])
def test_every_draw_of_a_search_raises_the_penalty_before_the_end(name, n_steps):
    """DomainBed's 10^U(0, 4) steps are meant for 5,000: in a training of 50 to 200, most would never raise it."""
    space = get_method(name).space
    configs = [draw_config(space, tiny.Defaults, trial) for trial in range(20)]
    method = case(name, [{k: v for k, v in c.items() if space[k].is_number} for c in configs]).method
    method.begin(n_steps)
    full = torch.tensor([config[method.penalty] for config in configs], dtype=torch.float64)
    torch.testing.assert_close(method.weight(n_steps - 1), full)
    assert int((method.weight(0) == 1.0).sum()) >= 8  # and most have time before
    assert len(set(method.change.tolist())) > 5


def test_a_share_of_one_never_raises_the_penalty():
    method = case("irm", [{"lambda_irm": 50.0, "anneal_share": 1.0}]).method
    method.begin(7)
    assert [float(method.weight(step)) for step in range(7)] == [1.0] * 7
