"""IRM-Games: whose turn it is, what that player may change, and what it answers to."""

import torch
from torch.nn import functional as F
from visual_setup import case

from bayescal.methods.base import Batch
from bayescal.optim import SGD

PLAYERS = [{f"player.{g}.weight", f"player.{g}.bias"} for g in range(3)]
BODY = {"hidden1.weight", "hidden1.bias", "hidden2.weight", "hidden2.bias"}


def ensemble(net, x):
    h = net.features(x)
    return sum(net.head(h, f"player.{g}") for g in range(3)) / 3


def at(c, step: int) -> Batch:
    return Batch(c.batch.features, c.batch.labels, c.batch.environments, 24, step)


def test_each_player_answers_to_its_own_environment():
    c = case("irm-games", [{}, {}])
    assert "head.weight" not in c.params  # the ensemble is the classifier
    for step in range(8):
        grads, terms = c.method.gradients(c.params, at(c, step))
        turn = step % 4
        assert set(grads) == (PLAYERS[turn] if turn < 3 else BODY)
        for r in range(2):
            net, x, y, e = c.row(r)
            risks = [F.cross_entropy(ensemble(net, x[e == g]), y[e == g]) for g in range(3)]
            own = risks[turn] if turn < 3 else sum(risks) / 3
            own.backward()
            torch.testing.assert_close(terms["total"][r], own.detach(), rtol=1e-10, atol=0)
            for name, grad in grads.items():
                torch.testing.assert_close(grad[r], net.weights[name].grad, rtol=1e-9, atol=1e-12)


def test_prediction_is_the_mean_of_the_players():
    c = case("irm-games")
    net, x, _, _ = c.row(0)
    torch.testing.assert_close(c.method.logits(c.params, c.batch.features)[0, 0], ensemble(net, x).detach())


def test_repeated_answers_lower_the_own_risk_until_no_player_wants_to_move():
    """With the others and the features held fixed, a player's own risk falls at its turns; in the end all are at rest.

    Three alike environments share an optimum, so the game has an equilibrium that the moves can reach.
    """
    c = case("irm-games", size=30)
    third = c.batch.features[:, :10].repeat(1, 3, 1)
    labels = c.batch.labels[:, :10].repeat(1, 3)
    labels[:, [0, 10, 20]] = (labels[:, [0, 10, 20]] + 1) % 3
    third[:, [0, 10, 20]] = third[:, [1, 11, 21]]  # the same image with two labels: the risk has a finite minimum
    environments = torch.arange(3).repeat_interleave(10)[None]
    optimizer, rate = SGD(momentum=0.0), torch.tensor([0.2], dtype=torch.float64)
    state = optimizer.init(c.params)

    def play(turn):
        batch = Batch(third, labels, environments, 30, turn)
        return c.method.gradients(c.params, batch)

    before = float(play(0)[1]["total"])
    for _ in range(120):
        for turn in range(3):
            grads, terms = play(turn)
            own = float(terms["total"])
            optimizer.step(c.params, grads, state, rate, {})
            assert float(play(turn)[1]["total"]) <= own + 1e-12
    assert float(play(0)[1]["total"]) < 0.5 * before
    assert all(float(grad.abs().max()) < 0.02 for turn in range(3) for grad in play(turn)[0].values())
