"""IRM-Games: whose turn it is, what that player may change, and what it answers to."""

import torch
from torch.nn import functional as F
from visual_setup import PlainNet, case, full_batch_training

import tiny
from bayescal.engine.optim import SGD
from bayescal.methods import get_method
from bayescal.methods.contract import Batch
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs

PLAYERS = [{f"player.{g}.weight", f"player.{g}.bias"} for g in range(3)]
BODY = {"hidden1.weight", "hidden1.bias", "hidden2.weight", "hidden2.bias"}


def ensemble(net, x, players=3):
    h = net.features(x)
    return sum(net.head(h, f"player.{g}") for g in range(players)) / players


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


def test_training_equals_an_adam_of_its_own_for_every_player():
    """Two environments, full batches, four rounds: players at the rate, the representation at a tenth of it.

    One counter of steps for all of them would make each player's step too long or too short by up to a half.
    """
    rate, decay = 0.01, 0.05
    options = {"epochs": 12, "learning_rate": rate, "weight_decay": decay, "stop_below": 0.0}
    t = full_batch_training("irm-games", **options)
    names = {"train_accuracy", "has_learned", "has_stopped"}
    net = PlainNet({n: v for n, v in t.start.items() if n not in names})

    def adam(prefix: str, lr: float) -> torch.optim.Adam:
        own = {n: v for n, v in net.weights.items() if n.startswith(prefix)}
        groups = [
            {"params": [v for n, v in own.items() if n.endswith(end)], "weight_decay": wd}
            for end, wd in ((".weight", decay), (".bias", 0.0))
        ]
        return torch.optim.Adam(groups, lr=lr)

    turns = [adam("player.0.", rate), adam("player.1.", rate), adam("hidden", 0.1 * rate)]
    for step in range(12):
        z = ensemble(net, t.x, players=2)
        risks = [F.cross_entropy(z[t.e == g], t.y[t.e == g]) for g in range(2)]
        turn = step % 3
        for weight in net.weights.values():
            weight.grad = None
        (risks[turn] if turn < 2 else sum(risks) / 2).backward()
        turns[turn].step()
    for name, value in net.weights.items():
        torch.testing.assert_close(t.end[name], value.detach(), rtol=0, atol=1e-9, msg=name)


def watched(accuracies: list[list[float]], **options) -> torch.Tensor:
    """Whether each of two runs has stopped after each of these training accuracies (of both runs): (steps, 2)."""
    c = case("irm-games", [options, options])  # three classes: chance is a third
    found = []
    for accuracy in accuracies:
        c.method.watch(c.params, torch.tensor(accuracy, dtype=torch.float64))
        found.append(c.method.stopped(c.params))
    return torch.stack(found)


def test_a_run_ends_where_its_training_accuracy_falls_to_chance():
    """Threshold: 1/3 + 0.1 · 2/3 = 0.4. Run 0 learns and then forgets, run 1 learns and stays."""
    stopped = watched([[0.9, 0.9]] * 20 + [[0.2, 0.9]] * 40)
    assert not stopped[:20].any()
    assert not stopped[:, 1].any()
    first = int(stopped[:, 0].int().argmax())
    assert 25 < first < 40  # the running mean has to get there first
    mean = 1 / 3
    for step in range(first + 1):
        mean = 0.9 * mean + 0.1 * (0.9 if step < 20 else 0.2)
        assert (mean < 0.4) == (step == first or step == 0)
    assert bool(stopped[first:, 0].all())  # for good


def test_a_run_that_wavers_on_its_way_up_goes_on():
    """Above the threshold 0.4 and below it again before 0.47 = 1/3 + 0.2 · 2/3: learning goes on."""
    wavering = [[0.45, 0.45]] * 12 + [[0.3, 0.3]] * 5
    mean = 1 / 3
    means = [mean := 0.9 * mean + 0.1 * accuracy for accuracy, _ in wavering]
    assert max(means) > 0.41
    assert means[-1] < 0.39
    assert not watched(wavering + [[0.9, 0.9]] * 20).any()


def test_a_small_rate_has_the_time_to_learn():
    """At the default length and a rate of the search's lower half, training images are learned."""
    problem = tiny.tiny_problem()
    config = default_config(get_method("irm-games").space, tiny.Defaults, learning_rate=1e-4)
    runs = [tiny.tiny_run(config, seed) for seed in (1, 2, 3)]
    right = []
    for run, result in zip(runs, train_runs("irm-games", problem, runs), strict=True):
        probs = result.predict(problem, problem.features[run.train], samples=0, checkpoint="last").probs[0]
        right.append(probs.argmax(-1) == problem.labels[run.train])
    assert torch.cat(right).float().mean() > 0.9  # after half of it 0.74


def test_a_run_that_has_not_learned_yet_goes_on():
    assert not watched([[0.3, 0.35]] * 100).any()
    assert not watched([[0.9, 0.9]] * 20 + [[0.0, 0.0]] * 80, stop_below=0.0).any()  # switched off


def test_a_run_that_has_ended_stays_as_it_is_and_the_others_go_on(monkeypatch):
    problem = tiny.tiny_problem()
    method = get_method("irm-games")
    config = default_config(method.space, tiny.Defaults, epochs=6, batch_size=18)
    plain = train_runs("irm-games", problem, [tiny.tiny_run(config, seed) for seed in (1, 2)], trajectory=True)

    def stop_the_first_after_three(self, params):
        # `has_learned` counts the steps here: what decides is not what this test is about
        params["has_learned"].add_(1)
        return (params["has_learned"] > 3) & torch.tensor([True, False])

    monkeypatch.setattr(method, "watch", lambda self, params, accuracy: None)
    monkeypatch.setattr(method, "stopped", stop_the_first_after_three)
    results = train_runs("irm-games", problem, [tiny.tiny_run(config, seed) for seed in (1, 2)], trajectory=True)
    for name, path in results[0].trajectory.items():
        assert torch.equal(path[-1], path[3]), name
        assert torch.equal(path[3], plain[0].trajectory[name][3]), name
    assert not torch.equal(results[0].params["player.0.weight"], plain[0].params["player.0.weight"])
    for name, path in results[1].trajectory.items():
        assert torch.equal(path[-1], plain[1].trajectory[name][-1]), name
    assert results[0].stopped is None  # it did not fail
