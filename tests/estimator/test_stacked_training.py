"""Training a stacked model: folds, left-out runs that see nothing of their environment, weights, what to expect."""

from dataclasses import replace

import pytest
import torch

import tiny
from bayescal.estimator import members, stacked_training
from bayescal.estimator.members import MEMBERS, bayes_cal
from bayescal.estimator.stacked_training import (
    Case,
    left_out_folds,
    stratified_folds,
    train_mixtures,
    train_stacked,
    training_sets,
)
from bayescal.evaluation.stacking import mixture
from bayescal.training import loop

NAMES = tiny.CLASSES


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(members, "STEPS", 10)


@pytest.fixture(scope="module")
def problem():
    return tiny.tiny_problem(gentle=True)


def images_of(problem, *environments: int, n: int = 24) -> torch.Tensor:
    return torch.isin(problem.environments, torch.tensor(environments)).nonzero()[:n, 0]


def learned(problem, *cases: Case, **options):
    return train_stacked(problem, tiny.Defaults, cases, samples=4, **options)


def test_one_fold_per_environment(problem):
    case = Case(images_of(problem, 0, 1, 2, n=45), 1)
    folds = left_out_folds(problem, case)
    assert folds.by_environment
    assert folds.names == tiny.ENVIRONMENTS
    assert torch.equal(folds.numbers, problem.environments[case.train])
    whole, *rests, without_some = training_sets(case, folds)
    assert torch.equal(whole, case.train)
    assert [set(problem.environments[rest].tolist()) for rest in rests] == [{1, 2}, {0, 2}, {0, 1}]
    left = set(case.train.tolist()) - set(without_some.tolist())
    assert len(left) == 45 // 4 + 1
    assert set(problem.environments[list(left)].tolist()) == {0, 1, 2}


def test_mixtures_that_share_members_are_each_what_it_is_alone(problem, monkeypatch):
    zero_shot, one, two = MEMBERS[0], bayes_cal(1.0), bayes_cal(0.1)
    mixtures = {"both": (zero_shot, one), "prompts": (one, two)}
    cases = [Case(images_of(problem, 0, 1, 2, n=45), 1)]
    trained = []
    real = stacked_training.train_runs
    monkeypatch.setattr(
        stacked_training,
        "train_runs",
        lambda name, own, runs, **more: trained.extend(runs) or real(name, own, runs, **more),
    )
    together = train_mixtures(problem, tiny.Defaults, cases, 4, mixtures)
    assert len(trained) == 3 * 5  # three members; all images, three left out, a quarter left out
    for name, members_ in mixtures.items():
        (alone,), (shared,) = learned(problem, *cases, members=members_), together[name]
        assert list(shared.members) == [member.name for member in members_]
        assert shared.titles == tuple(member.title for member in members_)
        torch.testing.assert_close(shared.left_out, alone.left_out, atol=1e-5, rtol=0)
        torch.testing.assert_close(shared.weights, alone.weights, atol=1e-4, rtol=0)
        assert shared.temperature == pytest.approx(alone.temperature, rel=1e-3)


def test_an_image_whose_class_no_other_environment_has_tells_nothing(problem):
    train = images_of(problem, 0, 1)
    labels = problem.labels.clone()
    only = train[(problem.environments[train] == 0) & (labels[train] == 2)]
    lacking = train[~((problem.environments[train] == 1) & (labels[train] == 2))]
    folds = left_out_folds(problem, Case(lacking, 1))
    assert folds.by_environment
    assert torch.equal(lacking[~folds.used], only)
    assert folds.alone == (2,)
    expected = learned(problem, Case(lacking, 1))[0].expected(NAMES)
    assert expected.unseen is not None
    assert expected.not_known == (NAMES[2],)
    assert expected.sentence().endswith(f"classes that were seen in one environment alone: {NAMES[2]}.")


def test_without_an_environment_nothing_of_it_is_seen_not_even_a_class_that_it_alone_has(problem):
    train = images_of(problem, 0, 1, 2, n=45)
    lacking = train[~((problem.environments[train] != 0) & (problem.labels[train] == 2))]
    case = Case(lacking, 1)
    _, *rests, _ = training_sets(case, left_out_folds(problem, case))
    assert [set(problem.environments[rest].tolist()) for rest in rests] == [{1, 2}, {0, 2}, {0, 1}]
    assert 2 not in problem.labels[rests[0]]
    learned(problem, case)  # every member copes without a class


@pytest.mark.parametrize("environments", [(1,), (0, 1)])
def test_where_environments_cannot_be_compared_ordinary_folds_take_their_place(problem, environments):
    """One environment alone; or two that share no class."""
    train = images_of(problem, *environments)
    if len(environments) == 2:
        train = train[(problem.environments[train] == 0) == (problem.labels[train] == 0)]
    folds = left_out_folds(problem, Case(train, 1))
    assert not folds.by_environment
    assert folds.names[0] == "fold 1"
    (stacked,) = learned(problem, Case(train, 1))
    expected = stacked.expected(NAMES)
    assert (expected.unseen, expected.low, expected.high) == (None, None, None)
    assert expected.seen == pytest.approx(float((stacked.mixed.argmax(1) == stacked.labels[folds.used]).float().mean()))
    assert "cannot be known" in expected.sentence()
    reason = {1: "all images come from one environment", 2: "no class has images from two environments"}
    assert reason[len(environments)] in expected.sentence()
    assert stacked.temperature == 1.0


def test_stratified_folds_are_even_in_every_cell():
    cells = torch.tensor([0] * 10 + [1] * 7 + [2] * 3)
    folds = stratified_folds(cells, 5, seed=3)
    for cell in range(3):
        counts = folds[cells == cell].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1
    assert not torch.equal(folds, stratified_folds(cells, 5, seed=4))


def test_cases_trained_together_are_those_trained_alone(problem):
    """Stacks of all cases' runs, against one case after the other."""
    cases = [Case(images_of(problem, 0, 1), 1), Case(images_of(problem, 1, 2), 2)]
    together = learned(problem, *cases)
    for case, stacked in zip(cases, together, strict=True):
        (alone,) = learned(problem, case)
        torch.testing.assert_close(stacked.left_out, alone.left_out, atol=1e-4, rtol=0)
        torch.testing.assert_close(stacked.weights, alone.weights, atol=1e-4, rtol=0)
        assert stacked.expected(NAMES) == alone.expected(NAMES)


def test_labels_of_other_images_change_nothing(problem):
    """Test images are in the problem too: whatever they are called, every choice stays."""
    case = Case(images_of(problem, 0, 1), 1)
    labels = problem.labels.clone()
    others = ~torch.isin(torch.arange(len(labels)), case.train)
    labels[others] = (labels[others] + 1) % 3
    (before,), (after,) = learned(problem, case), learned(replace(problem, labels=labels), case)
    assert torch.equal(before.weights, after.weights)
    assert before.temperature == after.temperature
    assert before.expected(NAMES) == after.expected(NAMES)
    assert torch.equal(before.left_out, after.left_out)


def test_a_cue_that_is_valid_inside_each_environment_does_not_raise_the_estimate():
    """In every environment another direction gives the class away: easy inside, worthless outside."""
    plain = tiny.tiny_problem(gentle=True)
    g = torch.Generator().manual_seed(1)
    n, dim = len(plain.labels), plain.features.shape[1]
    cues = torch.randn(3, 3, dim, generator=g)  # (environment, class, D)
    noise = torch.randn(n, dim, generator=g)
    planted = replace(plain, features=6 * cues[plain.environments, plain.labels] + noise)
    (stacked,) = learned(planted, Case(torch.arange(n), 1))
    expected = stacked.expected(NAMES)
    assert expected.seen > 0.9
    assert expected.unseen < 0.6
    assert expected.low < expected.unseen < expected.high


def test_the_weights_mix_what_was_left_out(problem):
    (stacked,) = learned(problem, Case(images_of(problem, 0, 1, 2, n=45), 1))
    assert float(stacked.weights.sum()) == pytest.approx(1.0)
    assert list(stacked.members) == [member.name for member in MEMBERS]
    torch.testing.assert_close(stacked.mixed, mixture(stacked.weights, stacked.left_out))
    table = stacked.table()
    assert sum(row["weight"] for row in table) == pytest.approx(1.0)
    best = min(table, key=lambda row: row["left_out_nll"])
    assert best["weight"] > 1 / len(MEMBERS)


def test_what_is_trained_is_not_trained_again(problem, tmp_path, monkeypatch):
    """With a folder for checkpoints, a second call finds every stack finished."""
    case, epochs = Case(images_of(problem, 0, 1), 1), []
    real = loop._train_epoch

    def counted(*given):
        epochs.append(1)
        return real(*given)

    monkeypatch.setattr(loop, "_train_epoch", counted)
    (first,) = learned(problem, case, checkpoints=tmp_path)
    trained = len(epochs)
    assert trained > 0
    (second,) = learned(problem, case, checkpoints=tmp_path)
    assert len(epochs) == trained
    assert torch.equal(first.left_out, second.left_out)


def test_a_left_out_environment_is_never_trained_on(problem, monkeypatch):
    """Every run that answers for an image was trained without its environment."""
    seen = []
    real = stacked_training.train_runs

    def spy(method, problem, runs, **more):
        seen.append([set(problem.environments[run.train].tolist()) for run in runs])
        return real(method, problem, runs, **more)

    monkeypatch.setattr(stacked_training, "train_runs", spy)
    learned(problem, Case(images_of(problem, 0, 1, 2, n=45), 1))
    for environments in seen:  # of a method: per member all, without each of the three, without some images
        assert environments == [{0, 1, 2}, {1, 2}, {0, 2}, {0, 1}, {0, 1, 2}] * (len(environments) // 5)
