"""IRM: the penalty against autograd's second derivative, and the annealing, which restarts Adam."""

import torch
from torch.nn import functional as F
from visual_setup import PlainNet, case, full_batch_training


def reference_penalty(logits, y, e):
    """Σ_g ( d/dw CE(w·z, y) at w = 1 )² by autograd."""
    total = 0.0
    for g in e.unique():
        w = torch.ones((), dtype=logits.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(F.cross_entropy(w * logits[e == g], y[e == g]), w, create_graph=True)
        total = total + slope.square()
    return total


def test_gradient_of_the_objective_after_annealing():
    c = case("irm", [{"irm_lambda": 7.0, "irm_anneal": 0}, {"irm_lambda": 0.5, "irm_anneal": 0}], absent=1)
    grads, terms = c.method.gradients(c.params, c.batch)
    for r, weight in enumerate((7.0, 0.5)):
        net, x, y, e = c.row(r)
        penalty = reference_penalty(net(x), y, e)
        (net.loss(x, y) + weight * penalty).backward()
        torch.testing.assert_close(terms["irm"][r], penalty.detach(), rtol=1e-10, atol=0)
        for name, grad in grads.items():
            torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_penalty_weight_changes_at_the_annealing_step_of_each_row():
    method = case("irm", [{"irm_lambda": 50.0, "irm_anneal": 3}, {"irm_lambda": 9.0, "irm_anneal": 0}]).method
    assert [method.weight(step).tolist() for step in (0, 2, 3, 4)] == [[1, 9], [1, 9], [50, 9], [50, 9]]
    assert method.resets(2) is None
    assert method.resets(3).tolist() == [True, False]
    assert method.resets(4) is None


def test_training_equals_adam_that_is_made_anew_at_the_annealing_step():
    """Full batches, so that a step is an epoch; six steps, the third with λ and a fresh optimiser."""
    options = {"epochs": 6, "irm_lambda": 30.0, "irm_anneal": 3, "learning_rate": 0.01}
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
    other = full_batch_training("irm", **{**options, "irm_anneal": 4})
    assert float((other.end["head.weight"] - t.end["head.weight"]).abs().max()) > 1e-3
