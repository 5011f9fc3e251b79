"""FewShotClassifier: the best of several trials, ensembles, and the temperature from validation images."""

import math

import numpy as np
import pytest
import torch
from classifying import HALF_LEARNED, entropy
from scipy.optimize import minimize_scalar

import bayescal.classifier
from bayescal.errors import BayescalError, BayescalWarning
from bayescal.predictor import fit_temperature
from bayescal.stacks import RunResult

pytestmark = pytest.mark.xdist_group("classifier")


def with_validation(results: list[RunResult], accuracies: list[float], stopped: tuple[int, ...] = ()) -> None:
    """Write other validation curves into results, to decide which trial is best."""
    for i, (result, accuracy) in enumerate(zip(results, accuracies, strict=True)):
        result.curves["val"] = [0.0, accuracy, 0.1]
        if i in stopped:
            object.__setattr__(result, "stopped", "stopped at step 3")


@pytest.mark.parametrize(
    ("accuracies", "stopped", "best"),
    [
        ([0.5, 0.9, 0.7], (), 1),
        ([0.5, 0.6, 0.7], (), 2),
        ([0.7, 0.7, 0.7], (), 0),  # equals: the defaults
        ([0.5, 0.9, 0.7], (1,), 2),
        ([0.5, 0.9, 0.7], (1, 2), 0),
    ],
)
def test_of_several_trials_the_best_on_validation_images_is_kept(make, data, monkeypatch, accuracies, stopped, best):
    trained: list[RunResult] = []
    real = bayescal.classifier.train_runs

    def spy(*given, **more):
        trained.extend(real(*given, **more))
        with_validation(trained, accuracies, stopped)
        return trained

    monkeypatch.setattr("bayescal.classifier.train_runs", spy)
    classifier = make("bayes-cal", trials=3, options={"epochs": 1}).fit(data.images, data.classes, data.environments)
    assert len({str(result.config) for result in trained}) == 3
    assert classifier.predictor_.config == trained[best].config
    assert classifier.predictor_.params["class.context"].equal(trained[best].best_params["class.context"])
    assert classifier.record_["trials"] == 3


def test_a_trial_is_judged_by_all_of_its_members(make, data, monkeypatch):
    trained: list[RunResult] = []
    real = bayescal.classifier.train_runs

    def spy(*given, **more):
        trained.extend(real(*given, **more))
        with_validation(trained, [1.0, 0.2, 0.7, 0.7], ())
        return trained

    monkeypatch.setattr("bayescal.classifier.train_runs", spy)
    classifier = make("cal", trials=2, members=2, options={"epochs": 1})
    classifier.fit(data.images, data.classes, data.environments)
    assert classifier.predictor_.config == trained[2].config


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
