"""FewShotClassifier: probabilities, "unsure", and what it says about its own answers."""

import math

import numpy as np
import pytest
from classifying import HALF_LEARNED, WIDE, entropy
from torch.nn.functional import normalize

from bayescal.backbones import load_backbone
from bayescal.errors import BayescalWarning
from bayescal.estimator.predictor import Predictor
from bayescal.evaluation.calibration import MARGIN
from bayescal.features import FeatureBank
from pictures import CLASSES

pytestmark = pytest.mark.xdist_group("classifier")


def test_probabilities_are_probabilities_of_the_classes_in_their_order(fitted, fresh):
    probabilities = fitted.predict_proba(fresh.images)
    assert probabilities.shape == (30, 3)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-6)
    assert (probabilities > 0).all()
    assert fitted.classes_.tolist() == ["ball", "box", "tent"]
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(fresh.images)).all()
    own = probabilities[np.arange(30), [fitted.classes_.tolist().index(name) for name in fresh.classes]]
    assert own.mean() > 0.6  # columns in another order would give the true class a third at best


def test_zero_shot_is_the_softmax_of_scaled_cosines(make, data, fresh, mini):
    """By hand: text features from sentences, image features from the image tower, nothing of ours in between."""
    classifier = make("clip").fit(data.images, data.classes, data.environments)
    text = normalize(mini.encode_texts([f"a photo of a {name}." for name in ("ball", "box", "tent")]).double(), dim=1)
    images = FeatureBank(mini, classifier.cache).encode(fresh.images).features.double()
    expected = (mini.logit_scale * normalize(images, dim=1) @ text.T).softmax(1)
    assert np.allclose(classifier.predict_proba(fresh.images), expected, atol=1e-5)
    assert classifier.record_["parameters"] == 0
    assert len(classifier.record_["curves"]["val"]) == 1


def test_learning_helps(make, data, fresh):
    zero_shot = make("clip").fit(data.images, data.classes, data.environments)
    for method in ("coop", "cal", "bayes-cal"):
        learned = make(method, options={"epochs": 8}).fit(data.images, data.classes, data.environments)
        assert learned.score(fresh.images, fresh.classes) > 0.9 > zero_shot.score(fresh.images, fresh.classes), method


def test_unsure_is_said_exactly_where_the_confidence_is_below_the_threshold(fit, fresh):
    classifier = fit()
    classifier.predictor_.familiarity = None  # "unfamiliar" is said first
    confidence = classifier.predict_proba(fresh.images).max(1)
    exactly = float(np.sort(confidence)[12])
    for threshold in (0.0, exactly, math.inf):
        classifier.predictor_.threshold = threshold
        assert classifier.threshold_ == threshold
        answers = classifier.predict_selective(fresh.images)
        unsure = confidence < threshold
        assert unsure.sum() == {0.0: 0, exactly: 12, math.inf: 30}[threshold]
        assert ((answers == "unsure") == unsure).all()
        assert (answers[~unsure] == classifier.predict(fresh.images)[~unsure]).all()
        assert (classifier.details(fresh.images).unsure == unsure).all()


@pytest.mark.parametrize(
    ("method", "options"),
    [("clip", {}), ("coop", HALF_LEARNED), ("bayes-cal", {**WIDE, "learning_rate": 1e-5})],
)
@pytest.mark.parametrize("calibrate", [False, True])
def test_the_threshold_keeps_95_percent_of_the_correct_validation_images(fit, data, method, options, calibrate):
    classifier = fit(method, calibrate=calibrate, options=options)
    part = data.take(np.flatnonzero(data.every(2)))
    # One by one: the promise must not hang on the last digit, which depends on what else is in a batch.
    probabilities = np.concatenate([classifier.predict_proba([image]) for image in part.images])
    correct = classifier.classes_[probabilities.argmax(1)] == np.array(part.classes)
    assert correct.sum() < len(part), "without mistakes this shows less"
    assert classifier.record_["validation_accuracy"] == correct.mean()
    sure = np.sort(probabilities.max(1)[correct])
    assert (sure >= classifier.threshold_).mean() >= 0.95
    # and no larger one would: it is the smallest of those that have to stay
    smallest = sure[len(sure) - math.ceil(0.95 * len(sure))]
    assert classifier.threshold_ == pytest.approx(smallest - MARGIN, abs=3e-6)


def test_no_correct_validation_image_means_unsure_about_everything(make, data, fresh):
    marks = data.every(2)
    answers = make("clip").fit(data.images, data.classes, data.environments, marks).predict(data.images)
    others = dict(zip(CLASSES, [*CLASSES[1:], CLASSES[0]], strict=True))
    # zero-shot learns nothing from labels, so these are all wrong
    labels = [others[a] if m else c for a, m, c in zip(answers.tolist(), marks, data.classes, strict=True)]
    classifier = make("clip").fit(data.images, labels, data.environments, marks)
    assert classifier.record_["validation_accuracy"] == 0
    assert classifier.threshold_ == math.inf
    classifier.predictor_.familiarity = None  # "unfamiliar" is said first
    assert set(classifier.predict_selective(fresh.images)) == {"unsure"}


def test_without_validation_images_nothing_is_called_unsure(make, data, fresh):
    with pytest.warns(BayescalWarning, match="no validation images"):
        classifier = make().fit(data.images, data.classes, data.environments, [False] * len(data))
    assert classifier.threshold_ == 0
    assert classifier.record_["validation_accuracy"] is None
    assert "unsure" not in classifier.predict_selective(fresh.images)


def test_details_agree_with_each_other(fitted, fresh):
    details = fitted.details(fresh.images)
    assert (details.confidence == details.probabilities.max(1)).all()
    assert (details.labels == fitted.predict(fresh.images)).all()
    assert np.allclose(details.entropy, entropy(details.probabilities), atol=1e-6)
    assert ((details.entropy >= 0) & (details.entropy <= math.log(3) + 1e-6)).all()
    assert (details.mutual_information <= details.entropy).all()


def test_samples_that_disagree_show_in_the_mutual_information(fit, fresh):
    certain = fit("coop").details(fresh.images)
    narrow = fit("bayes-cal", options={**WIDE, "prior_scale": 0.005}).details(fresh.images)
    wide = fit("bayes-cal", options=WIDE).details(fresh.images)
    assert certain.mutual_information.max() < 1e-6
    assert wide.mutual_information.min() > 1e-4
    assert wide.mutual_information.mean() > 5 * narrow.mutual_information.mean() > 1e-6
    mean_only = fit("bayes-cal", options=WIDE, samples=0).details(fresh.images)
    assert mean_only.mutual_information.max() < 1e-6


def test_a_temperature_leaves_the_mutual_information_alone(fit, fresh):
    """It changes how sure the mean is, not what samples disagree about; without samples nothing can disagree."""
    for method, options in (("coop", HALF_LEARNED), ("bayes-cal", {**WIDE, "learning_rate": 0.001})):
        plain, calibrated = (fit(method, options=options, calibrate=c) for c in (False, True))
        assert abs(math.log(calibrated.predictor_.temperature)) > 0.05
        a, b = (c.details(fresh.images) for c in (plain, calibrated))
        assert np.allclose(a.mutual_information, b.mutual_information, atol=1e-12)
        assert not np.allclose(a.entropy, b.entropy, atol=1e-3)


def test_the_environment_is_the_one_that_looks_alike(fitted, fresh):
    assert fitted.details(fresh.images).environment.tolist() == fresh.environments


def test_the_posterior_mean_is_deterministic_and_samples_are_not_it(fit, fresh):
    mean, drawn = (fit("bayes-cal", options=WIDE, samples=samples) for samples in (0, 20))
    for name, value in mean.predictor_.params.items():
        assert value.equal(drawn.predictor_.params[name])  # samples play no part in training
    assert np.array_equal(mean.predict_proba(fresh.images), mean.predict_proba(fresh.images))
    assert np.array_equal(drawn.predict_proba(fresh.images), drawn.predict_proba(fresh.images))
    assert np.abs(mean.predict_proba(fresh.images) - drawn.predict_proba(fresh.images)).max() > 0.01
    # The mean of more samples is nearer to the mean of very many: it is an average, not one draw.
    many = fit("bayes-cal", options=WIDE, samples=400).predict_proba(fresh.images)
    few, more = (fit("bayes-cal", options=WIDE, samples=samples).predict_proba(fresh.images) for samples in (1, 100))
    assert np.abs(more - many).mean() < 0.5 * np.abs(few - many).mean()


def test_the_seed_decides_everything(make, data, fresh):
    fits = [make("bayes-cal", seed=seed).fit(data.images, data.classes, data.environments) for seed in (5, 5, 6)]
    same, again, other = (c.predictor_ for c in fits)
    assert all(value.equal(again.params[name]) for name, value in same.params.items())
    assert same.threshold == again.threshold
    assert same.record["split"] == again.record["split"] != other.record["split"]
    assert not same.params["class.context"].equal(other.params["class.context"])


def test_a_predictor_can_be_asked_about_features(fitted, fresh, cache):
    predictor: Predictor = fitted.predictor_
    features = FeatureBank(load_backbone("mini"), cache).encode(fresh.images).features
    assert np.array_equal(predictor.details(features).probabilities, fitted.predict_proba(fresh.images))
