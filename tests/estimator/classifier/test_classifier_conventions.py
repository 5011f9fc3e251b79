"""FewShotClassifier as a scikit-learn estimator, and what it refuses."""

import warnings

import numpy as np
import pytest
from classifying import HALF_LEARNED
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils.validation import check_is_fitted

from bayescal import FewShotClassifier
from bayescal.errors import BayescalError, DataError
from pictures import save_pictures

pytestmark = pytest.mark.xdist_group("classifier")

ARGUMENTS = {
    "method": "coop",
    "backbone": "mini",
    "shots": 3,
    "val_shots": 2,
    "trials": 2,
    "members": 3,
    "calibrate": True,
    "samples": 4,
    "views": 1,
    "options": {"epochs": 7},
    "class_words": {"ball": "round ball"},
    "environment_words": {"snow": "white snow"},
    "seed": 11,
    "cache": "somewhere",
    "device": "cpu",
    "verbose": True,
}


def test_constructor_arguments_are_stored_untouched():
    classifier = FewShotClassifier(**ARGUMENTS)
    assert set(classifier.get_params()) == set(ARGUMENTS)
    assert all(getattr(classifier, name) is value for name, value in ARGUMENTS.items())
    assert set(vars(classifier)) == set(ARGUMENTS)  # and nothing is derived from them before fit


def test_set_params():
    classifier = FewShotClassifier().set_params(method="cal", seed=9)
    assert (classifier.method, classifier.seed) == ("cal", 9)
    with pytest.raises(ValueError, match="Invalid parameter 'sed'"):
        classifier.set_params(sed=9)


def test_clone_gives_an_unfitted_equal_classifier(fitted):
    check_is_fitted(fitted)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "predictor_")
    with pytest.raises(NotFittedError):
        check_is_fitted(copy)
    assert is_classifier(copy)


@pytest.mark.parametrize("name", ["predict", "predict_proba", "predict_selective", "details"])
def test_predicting_before_fit_is_an_error(name, fresh):
    with pytest.raises(NotFittedError, match="call fit"):
        getattr(FewShotClassifier(), name)(fresh.images)


def test_everything_else_before_fit_is_an_error(fresh, tmp_path):
    classifier = FewShotClassifier()
    with pytest.raises(NotFittedError):
        classifier.score(fresh.images, fresh.classes)
    with pytest.raises(NotFittedError):
        classifier.save(tmp_path / "model")
    assert not hasattr(classifier, "threshold_")
    assert not hasattr(classifier, "record_")


def test_fit_changes_no_constructor_argument(fitted, make):
    assert fitted.get_params() == make("bayes-cal").get_params()


def test_cross_val_score_splits_the_environments_along(make, data, tmp_path):
    paths = save_pictures(data.images, tmp_path)
    environments = np.array(data.environments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "only one environment" would mean that they did not arrive
        scores = cross_val_score(
            make(options=HALF_LEARNED), paths, data.classes, cv=3, params={"environments": environments}
        )
    expected = []
    for train, test in StratifiedKFold(3).split(paths, data.classes):
        part, rest = data.take(train), data.take(test)
        classifier = make(options=HALF_LEARNED).fit([paths[i] for i in train], part.classes, part.environments)
        expected.append(np.mean(classifier.predict(rest.images) == np.array(rest.classes)))
    assert scores.tolist() == expected
    assert 0.4 < scores.mean() < 1


def test_score_is_the_accuracy(fit, fresh):
    classifier = fit(options=HALF_LEARNED)
    right = classifier.predict(fresh.images) == np.array(fresh.classes)
    assert classifier.score(fresh.images, fresh.classes) == right.mean()
    assert 0.4 < right.mean() < 1  # and it is no constant


def test_a_fit_that_fails_leaves_no_half_old_classifier(make, data):
    classifier = make("clip").fit(data.images, data.classes, data.environments)
    with pytest.raises(DataError, match="two classes"):
        classifier.fit(data.images, ["other"] * len(data), data.environments)
    with pytest.raises(NotFittedError):
        classifier.predict(data.images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "no images"),
        ((["a.png"], ["ball", "box"], ["night"]), "1, 2 and 1"),
        ((["a.png"] * 2, ["ball", "box"], ["night"]), "2, 2 and 1"),
        ((["a.png"] * 2, ["ball", "ball"], ["night"] * 2), "at least two classes, found 1"),
        ((["a.png"] * 2, ["ball", "box"], ["night"] * 2, [True]), "each of the 2 images, found 1"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(make, arguments, message):
    with pytest.raises(DataError, match=message):
        make().fit(*arguments)


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"members": 0}, {"samples": -1}], ids=str)
def test_impossible_numbers_are_refused(make, data, wrong):
    with pytest.raises(BayescalError, match="at least"):
        make(**wrong).fit(data.images, data.classes, data.environments)


def test_numbers_may_be_numpy_s_own(make, data, tmp_path):
    plain = make("bayes-cal", seed=3, samples=2, shots=4, options={"epochs": 2, "learning_rate": 0.5})
    numpy = make(
        "bayes-cal",
        seed=np.int64(3),
        samples=np.int32(2),
        shots=np.int64(4),
        options={"epochs": np.int64(2), "learning_rate": np.float64(0.5)},
    )
    a, b = (c.fit(data.images, data.classes, data.environments) for c in (plain, numpy))
    assert np.array_equal(a.predict_proba(data.images), b.predict_proba(data.images))
    b.save(tmp_path / "model")


def test_a_single_path_is_not_a_list():
    with pytest.raises(DataError, match="expected a list of images"):
        FewShotClassifier().fit("photo.jpg", ["a"], ["b"])
