"""Thousands of classes: what a training takes is said before it begins; what cannot be afforded is left out."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tiny
from bayescal.engine import operations
from bayescal.estimator import members, stacked_training
from bayescal.estimator.members import MEMBERS, affordable
from bayescal.estimator.stacked_training import Case, left_out_folds, train_stacked, training_sets
from bayescal.methods import contract, get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.text import prompt_tree
from bayescal.training import forecast, loop
from bayescal.training.forecast import in_words, time_said, training_operations
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack, train_runs

ALL = torch.arange(45)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(members, "STEPS", 4)
    # torch does not count oneDNN's products
    monkeypatch.setattr("bayescal.engine.linear.one_dnn_is_faster", lambda: False)


@pytest.fixture(scope="module")
def problem():
    return tiny.tiny_problem(gentle=True)


def run_of(method: str, n: int = 18, **options) -> Run:
    return Run(default_config(get_method(method).space, tiny.Defaults, **options), 1, torch.arange(n))


@pytest.mark.parametrize("method", ["coop", "cal", "bayes-cal", "erm", "dplclip"])
@pytest.mark.parametrize("blocks", [False, True])
def test_operations_are_those_that_torch_counts(problem, monkeypatch, method, blocks):
    """Within a factor of two, attention and Python left out; also where names are read in blocks, and so twice."""
    if blocks:
        monkeypatch.setattr(prompt_tree, "activation_budget", lambda device: 1)
    run = run_of(method, epochs=3, batch_size=6)
    bound, data, _ = bind_stack(get_method(method), problem, [run])
    with FlopCounterMode(display=False) as counter:
        loop.train(bound, data)
    expected = training_operations(method, problem, [run])
    assert 0.5 < counter.get_total_flops() / expected < 2.2
    assert training_operations(method, problem, [run, run]) == 2 * expected


def test_cost_grows_with_names_and_images(problem):
    one, more = (training_operations("bayes-cal", problem, [run_of("bayes-cal", n)]) for n in (8, 24))
    assert more == pytest.approx(3 * one, rel=0.1)
    assert training_operations("clip", problem, [run_of("clip")]) == 0


def test_what_takes_long_is_said_before_it_begins(problem, monkeypatch, capsys):
    monkeypatch.setattr(forecast, "expected_seconds", lambda count, device: 0.05 * count)
    assert time_said(1000, problem) is None
    said = time_said(1e5, problem)
    assert said is not None
    assert "about 83 minutes here (3 classes, cpu)" in said
    assert [in_words(s) for s in (0.2, 65, 120, 7200, 8e4, 3e5)] == [
        "1 second", "65 seconds", "2 minutes", "2 hours", "22 hours", "3 days"
    ]  # fmt: skip
    train_stacked(problem, tiny.Defaults, [Case(ALL, 1)], samples=2, progress="training")
    assert "Training will take about" in capsys.readouterr().err
    assert operations.expected_seconds(1e9, torch.device("cpu")) > 0


def test_members_that_cannot_be_afforded_are_left_out_and_named(problem, monkeypatch):
    sets = [ALL, ALL[:30]]
    assert affordable(problem, tiny.Defaults, sets).members == MEMBERS
    cost = {m.name: training_operations(m.method, problem, [Run(m.config(tiny.Defaults, len(s)), 1, s) for s in sets])
            for m in MEMBERS}  # fmt: skip
    dear = min(cost[name] for name in cost if name.startswith("bayes-cal"))
    monkeypatch.setattr(members, "AFFORDABLE_OPERATIONS", {"cpu": dear - 1})
    choice = affordable(problem, tiny.Defaults, sets)
    left = {member.name for member in MEMBERS} - {member.name for member in choice.members}
    assert left == {name for name, count in cost.items() if count >= dear} >= {"bayes-cal-1", "bayes-cal-0.1"}
    assert choice.operations == pytest.approx(sum(cost[member.name] for member in choice.members))
    assert "3 classes make them too long to train: " in choice.notes[0]
    assert "Bayes-CAL, β = 0.3" in choice.notes[0]
    monkeypatch.setattr(members, "AFFORDABLE_NUMBERS", 3 * 45 - 1)
    assert "too large: Tip-Adapter, α = 1, β = 2; Tip-Adapter" in affordable(problem, tiny.Defaults, sets).notes[1]
    (stacked,) = train_stacked(problem, tiny.Defaults, [Case(ALL, 1)], samples=2)
    assert [row["member"] for row in stacked.table()] == list(stacked.members)
    assert not any("tip-adapter" in name or "bayes-cal" in name for name in stacked.members)
    assert float(stacked.weights.sum()) == pytest.approx(1)
    assert len(stacked.notes) == 2


def test_of_very_many_answers_drawn_ones_decide(problem, monkeypatch):
    """Fewer images are asked about; what is trained on what is as before."""
    case = Case(ALL, 1)
    before = training_sets(case, left_out_folds(problem, case))
    monkeypatch.setattr(stacked_training, "ANSWERS", 20 * len(MEMBERS) * 3)
    folds = left_out_folds(problem, case)
    assert int(folds.used.sum()) == 20
    after = training_sets(case, folds)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    (stacked,) = train_stacked(problem, tiny.Defaults, [case], samples=2)
    assert stacked.left_out.shape == (len(MEMBERS), 20, 3)
    assert torch.equal(stacked.labels, problem.labels[ALL[folds.used]])
    assert stacked.expected(tiny.CLASSES).unseen is not None


def test_a_long_epoch_tells_how_far_it_is(problem, monkeypatch):
    monkeypatch.setattr(loop, "PROGRESS_SECONDS", 0.0)
    told: list[float] = []
    train_runs("coop", problem, [run_of("coop", epochs=2, batch_size=6)], progress=told.append)
    assert told == pytest.approx([1 / 3] * 6)
    monkeypatch.setattr(loop, "PROGRESS_SECONDS", 1e9)
    told.clear()
    train_runs("coop", problem, [run_of("coop", epochs=2, batch_size=6)] * 2, progress=told.append)
    assert told == [2.0, 2.0]


def test_many_classes_mean_fewer_images_at_once_and_the_same_answers(problem, monkeypatch):
    (result,) = train_runs("bayes-cal", problem, [run_of("bayes-cal", epochs=1)])
    before = result.predict(problem, problem.features, samples=3).probs
    monkeypatch.setattr(contract, "PREDICT_NUMBERS", 3 * 3 * 7)
    assert result.bind(problem).images_at_once(120, 3) == 7
    torch.testing.assert_close(result.predict(problem, problem.features, samples=3).probs, before)
