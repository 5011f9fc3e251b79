"""FewShotClassifier: the best of several trials, ensembles, and the temperature from validation images."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from classifying import HALF_LEARNED, entropy
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

import bayescal.estimator.fitting
import tiny
from bayescal.errors import BayescalError, BayescalWarning
from bayescal.estimator.fitting import _parts_to_choose_by
from bayescal.evaluation.calibration import fit_temperature

pytestmark = pytest.mark.xdist_group("classifier")


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.5, 0.3, 0.7], 1),
        ([0.5, 0.6, 0.2], 2),
        ([0.7, 0.7, 0.7], 0),  # equals: the defaults
        ([0.5, math.inf, 0.4], 2),  # a trial that stopped
    ],
)
def test_of_several_trials_the_best_on_left_out_environments_is_kept(make, data, monkeypatch, losses, best):
    """Two environments, so every trial is trained without each of them; validation images have no say."""
    trained, asked = [], []
    real = bayescal.estimator.fitting.train_runs

    def spy(method, problem, runs, **more):
        results = real(method, problem, runs, **more)
        trained.append((problem, runs, results))
        return results

    def loss(result, problem, images, samples):
        asked.append((result, images))
        return losses[(len(asked) - 1) // 2]

    monkeypatch.setattr("bayescal.estimator.fitting.train_runs", spy)
    monkeypatch.setattr("bayescal.estimator.fitting._log_loss", loss)
    classifier = make("bayes-cal", trials=3, options={"epochs": 1}).fit(data.images, data.classes, data.environments)
    (problem, tried, _), (_, kept, _) = trained
    assert len(tried) == len(asked) == 3 * 2
    assert len({str(run.config) for run in tried}) == 3
    for run, (_, images) in zip(tried, asked, strict=True):
        seen, held = (set(problem.environments[rows].tolist()) for rows in (run.train, images))
        assert len(seen) == len(held) == 1 and not seen & held  # noqa: PT018
    assert [run.config for run in kept] == [tried[2 * best].config]
    assert classifier.predictor_.config == tried[2 * best].config
    assert classifier.record_["trials"] == 3


def test_with_one_environment_trials_are_compared_on_validation_images(make, data, monkeypatch):
    asked = []

    def loss(result, problem, images, samples):
        asked.append(images)
        return float(len(asked))

    monkeypatch.setattr("bayescal.estimator.fitting._log_loss", loss)
    with pytest.warns(BayescalWarning, match="only one environment"):
        classifier = make("coop", trials=2, options={"epochs": 1}).fit(data.images, data.classes)
    assert [len(images) for images in asked] == [classifier.record_["validation_images"]] * 2


def test_with_one_environment_and_no_validation_images_trials_are_compared_in_folds(make, data, monkeypatch):
    """Never on what they were trained on."""
    compared = []

    def parts(*arguments):
        compared.append(_parts_to_choose_by(*arguments))
        return compared[-1]

    monkeypatch.setattr("bayescal.estimator.fitting._parts_to_choose_by", parts)
    with pytest.warns(BayescalWarning):
        make("coop", trials=2, shots=6, val_shots=0, options={"epochs": 1}).fit(data.images, data.classes)
    (found,) = compared
    assert len(found) == 5
    assert not any(torch.isin(held, rest).any() for rest, held in found)
    assert sorted(torch.cat([held for _, held in found]).tolist()) == list(range(18))


def test_trials_are_not_compared_on_classes_that_they_could_not_learn():
    problem = tiny.tiny_problem()
    train = torch.arange(45)
    train = train[~((problem.environments[train] != 0) & (problem.labels[train] == 2))]
    parts = _parts_to_choose_by(problem, train, train[:0], 1)
    assert len(parts) == 3
    for rest, held in parts:
        assert set(problem.labels[held].tolist()) == {0, 1}
        assert not set(problem.environments[rest].tolist()) & set(problem.environments[held].tolist())


def test_the_loss_of_a_trial_is_that_of_its_answers(make, data, monkeypatch):
    """Against scikit-learn's log loss; a run that stopped is worse than any."""
    found = []
    real = bayescal.estimator.fitting._log_loss

    def spy(result, problem, images, samples):
        loss = real(result, problem, images, samples)
        probs = result.predict(problem, problem.features[images], samples=samples).probs[0]
        found.append((loss, log_loss(problem.labels[images], probs.double(), labels=[0, 1, 2])))
        assert math.isinf(real(replace(result, stopped="stopped at step 3"), problem, images, samples))
        return loss

    monkeypatch.setattr("bayescal.estimator.fitting._log_loss", spy)
    make("coop", trials=2, options={"epochs": 1}).fit(data.images, data.classes, data.environments)
    assert len(found) == 4
    assert [loss for loss, _ in found] == pytest.approx([expected for _, expected in found], rel=1e-4)


def test_nothing_left_alive_is_an_error(make, data):
    with pytest.raises(BayescalError, match="not finite"):
        make(options={"epochs": 2, "learning_rate": math.inf}).fit(data.images, data.classes, data.environments)


def test_members_are_averaged(fit, fresh):
    """Three copies with seeds s, s + 1, s + 2 on the same images: probabilities are the mean, and what the members
    disagree about is mutual information."""
    together = fit("cal", members=3, seed=4, options={"epochs": 3, "context_init": "", "learning_rate": 0.1})
    alone = [
        fit("cal", seed=seed, options={"epochs": 3, "context_init": "", "learning_rate": 0.1}).predict_proba(
            fresh.images
        )
        for seed in (4, 5, 6)
    ]
    details = together.details(fresh.images)
    assert together.predictor_.seeds == [4, 5, 6]
    assert np.allclose(details.probabilities, np.mean(alone, axis=0), atol=1e-5)
    assert np.abs(alone[0] - alone[1]).max() > 0.01
    information = entropy(np.mean(alone, axis=0)) - np.mean([entropy(p) for p in alone], axis=0)
    assert np.allclose(details.mutual_information, information, atol=1e-5)
    assert information.max() > 1e-3


def test_members_share_one_split(make, data):
    single, several = (
        make("cal", members=members, shots=4).fit(data.images, data.classes, data.environments) for members in (1, 3)
    )
    assert single.record_["split"] == several.record_["split"]
    assert single.record_["parameters"] == several.record_["parameters"]


@pytest.mark.parametrize("method", ["clip", "coop"])
def test_calibration_finds_the_temperature_that_validation_images_want(fit, data, method):
    options = {} if method == "clip" else {"options": HALF_LEARNED}
    plain, calibrated = fit(method, **options), fit(method, calibrate=True, **options)
    part = data.take(np.flatnonzero(data.every(2)))
    labels = np.array([plain.classes_.tolist().index(name) for name in part.classes])
    logits = np.log(plain.predict_proba(part.images).astype(np.float64))

    def cost(temperature: float) -> float:
        scaled = logits / temperature
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels)), labels]))

    best = minimize_scalar(cost, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-6})
    found = calibrated.predictor_.temperature
    assert found == pytest.approx(best.x, rel=0.012)  # the grid's step
    assert cost(found) < cost(1.0)
    own = calibrated.predict_proba(part.images)[np.arange(len(labels)), labels]
    assert -np.log(own).mean() == pytest.approx(cost(found), abs=1e-5)
    assert (calibrated.predict(part.images) == plain.predict(part.images)).all()


def test_temperature_is_found_from_both_sides():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 4, generator=generator, dtype=torch.float64) * 3
    labels = logits.softmax(1).multinomial(1, generator=generator)[:, 0]
    for factor in (0.4, 1.0, 2.5):  # as if too sure, right, and too careful
        assert fit_temperature((logits * factor).softmax(1), labels) == pytest.approx(factor, rel=0.08)


def test_a_perfect_validation_set_calibrates_nothing(fit):
    """The likelihood would be best at a temperature of zero, and every answer 100 % sure."""
    with pytest.warns(BayescalWarning, match="not calibrated"):
        classifier = fit(options={"epochs": 8}, calibrate=True)
    assert classifier.record_["validation_accuracy"] == 1
    assert classifier.predictor_.temperature == 1
