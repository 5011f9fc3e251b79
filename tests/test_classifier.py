"""FewShotClassifier: scikit-learn's conventions, every kind of image, and what it says about its own answers."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils.validation import check_is_fitted
from torch.nn.functional import normalize

import bayescal.classifier
from bayescal import FewShotClassifier
from bayescal.backbones import load_backbone
from bayescal.errors import BayescalError, BayescalWarning, DataError, MethodError
from bayescal.features import FeatureBank
from bayescal.predictor import Predictor, fit_temperature
from bayescal.stacks import RunResult
from pictures import CLASSES, ENVIRONMENTS, Pictures, make_pictures, save_pictures

pytestmark = pytest.mark.xdist_group("classifier")

QUICK = {"epochs": 3}
HALF_LEARNED = {"epochs": 2, "learning_rate": 0.001}  # still makes mistakes
WIDE = {"epochs": 2, "prior_scale": 0.5, "initial_scale": 1.0}  # a posterior whose draws disagree


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data() -> Pictures:
    return make_pictures(8)


@pytest.fixture(scope="module")
def fresh() -> Pictures:
    """Pictures that no classifier has learned from."""
    return make_pictures(5, first=100)


@pytest.fixture(scope="module")
def make(cache):
    """A classifier with the tests' own cache and a short training."""

    def make(method: str = "coop", **changes) -> FewShotClassifier:
        changes.setdefault("options", {} if method == "clip" else QUICK)
        return FewShotClassifier(method, cache=cache, **changes)

    return make


@pytest.fixture(scope="module")
def fit(make, data):
    """`make`, fitted on the pictures with every second one to validate on."""

    def fit(method: str = "coop", **changes) -> FewShotClassifier:
        return make(method, **changes).fit(data.images, data.classes, data.environments, data.every(2))

    return fit


@pytest.fixture(scope="module")
def fitted(fit) -> FewShotClassifier:
    return fit("bayes-cal")


def entropy(probabilities: np.ndarray) -> np.ndarray:
    p = probabilities.astype(np.float64)
    return -(p * np.log(p)).sum(1)


# ---- conventions ---------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "method": "coop",
    "backbone": "mini",
    "shots": 3,
    "val_shots": 2,
    "trials": 2,
    "members": 3,
    "calibrate": True,
    "draws": 4,
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


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"members": 0}, {"draws": -1}], ids=str)
def test_impossible_numbers_are_refused(make, data, wrong):
    with pytest.raises(BayescalError, match="at least"):
        make(**wrong).fit(data.images, data.classes, data.environments)


def test_numbers_may_be_numpy_s_own(make, data, tmp_path):
    plain = make("bayes-cal", seed=3, draws=2, shots=4, options={"epochs": 2, "learning_rate": 0.5})
    numpy = make(
        "bayes-cal",
        seed=np.int64(3),
        draws=np.int32(2),
        shots=np.int64(4),
        options={"epochs": np.int64(2), "learning_rate": np.float64(0.5)},
    )
    a, b = (c.fit(data.images, data.classes, data.environments) for c in (plain, numpy))
    assert np.array_equal(a.predict_proba(data.images), b.predict_proba(data.images))
    b.save(tmp_path / "model")


# ---- images and labels ---------------------------------------------------------------------------------------------


def test_every_kind_of_image_gives_the_same_answer(fitted, fresh, tmp_path):
    paths = save_pictures(fresh.images, tmp_path)
    expected = fitted.predict_proba(fresh.images)
    for images in (
        paths,
        [str(path) for path in paths],
        np.array([str(path) for path in paths]),
        [np.asarray(image) for image in fresh.images],
        np.stack([np.asarray(image) for image in fresh.images]),
        (image.convert("RGBA") for image in fresh.images),
    ):
        assert np.array_equal(fitted.predict_proba(images), expected)
    assert not np.array_equal(fitted.predict_proba(paths[::-1]), expected)  # the order matters, as it should


def test_every_kind_of_image_teaches_the_same(make, data, fresh, tmp_path):
    answers = []
    for images in (data.images, save_pictures(data.images, tmp_path), [np.asarray(i) for i in data.images]):
        classifier = make().fit(images, data.classes, data.environments, data.every(2))
        answers.append(classifier.predict_proba(fresh.images))
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


def test_no_images_no_answers(fitted):
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 3)


WORDS = {10: "ball", 20: "tent", 30: "box"}


@pytest.mark.parametrize("kind", [str, int])
def test_labels_come_back_with_their_type(make, data, fresh, kind, tmp_path):
    number = {name: label for label, name in WORDS.items()}
    label = (lambda name: name) if kind is str else number.get
    classifier = make(class_words=None if kind is str else WORDS)
    classifier.fit(data.images, [label(c) for c in data.classes], data.environments)
    classifier.predictor_.threshold = float(np.median(classifier.details(fresh.images).confidence))
    classifier.save(tmp_path / "model")
    for c in (classifier, FewShotClassifier.load(tmp_path / "model", cache=classifier.cache)):
        assert c.classes_.tolist() == sorted(label(name) for name in CLASSES)
        answers = c.predict(fresh.images)
        assert answers.dtype.kind == ("U" if kind is str else "i")
        assert np.mean(answers == np.array([label(name) for name in fresh.classes])) > 0.8
        careful = c.predict_selective(fresh.images).tolist()
        assert {type(answer) for answer in careful} == {kind, str}
        assert {answer for answer in careful if answer != "unsure"} <= set(c.classes_.tolist())


def test_class_words_may_be_given_for_numbers(make, data):
    numbers = [CLASSES.index(name) for name in data.classes]
    classifier = make("clip", class_words={0: "ball", 1: "tent"}).fit(data.images, numbers, data.environments)
    assert classifier.class_words_ == ("ball", "tent", "2")


def test_words_decide_what_the_text_tower_reads(make, data, fresh):
    by_name = make("clip").fit(data.images, data.classes, data.environments)
    swap = {"ball": "tent", "tent": "ball"}
    swapped = make("clip", class_words=swap).fit(data.images, data.classes, data.environments)
    columns = [list(by_name.classes_).index(swap.get(name, name)) for name in swapped.classes_]
    expected = by_name.predict_proba(fresh.images)[:, columns]
    assert np.allclose(swapped.predict_proba(fresh.images), expected, atol=1e-6)
    assert not np.allclose(by_name.predict_proba(fresh.images), expected, atol=0.1)


def test_environment_words_are_trained_with_and_labels_are_answered(make, data, fresh):
    classifier = make("bayes-cal", environment_words={"snow": "a white field"})
    classifier.fit(data.images, data.classes, data.environments)
    assert classifier.predictor_.trained_environments == ("night", "a white field")
    assert set(classifier.details(fresh.images).environment) == set(ENVIRONMENTS)


@pytest.mark.parametrize("kind", ["class_words", "environment_words"])
def test_words_for_unknown_labels_are_refused(make, data, kind):
    with pytest.raises(DataError, match=f"{kind} names 'bal'"):
        make(**{kind: {"bal": "x"}}).fit(data.images, data.classes, data.environments)


def test_words_that_are_the_same_are_refused(make, data):
    with pytest.raises(DataError, match="the same to the model"):
        make(class_words={"ball": "box"}).fit(data.images, data.classes, data.environments)


def test_unreadable_images_are_left_out_and_named(make, data, tmp_path):
    paths = save_pictures(data.images, tmp_path)
    paths[5].write_bytes(b"")
    paths[17].write_text("no picture")
    with pytest.warns(BayescalWarning) as caught:
        classifier = make().fit(paths, data.classes, data.environments, data.every(2))
    (message,) = (str(w.message) for w in caught)
    assert message.startswith("2 of 48 images could not be read and were left out")
    assert paths[5].name in message
    assert paths[17].name in message
    assert classifier.record_["unreadable_images"] == 2
    assert classifier.record_["train_images"] + classifier.record_["validation_images"] == 46
    # What is left is what a fit without them learns: no row slipped.
    rows = [i for i in range(len(data)) if i not in (5, 17)]
    part = data.take(rows)
    same = make().fit(part.images, part.classes, part.environments, data.every(2)[rows])
    assert np.array_equal(classifier.predict_proba(data.images), same.predict_proba(data.images))


def test_a_class_without_a_readable_image_is_refused(make, data, tmp_path):
    paths = save_pictures(data.images, tmp_path)
    for path, name in zip(paths, data.classes, strict=True):
        if name == "tent":
            path.write_bytes(b"")
    with pytest.raises(DataError, match="no readable image of class 'tent'"):
        make().fit(paths, data.classes, data.environments)


def test_an_unreadable_image_to_predict_is_an_error_that_names_it(fitted, fresh, tmp_path):
    paths = save_pictures(fresh.images, tmp_path)
    paths[3].write_bytes(b"")
    with pytest.raises(DataError, match=f"1 of 30 images could not be read .*{paths[3].name}"):
        fitted.predict(paths)


# ---- answers -------------------------------------------------------------------------------------------------------


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
    assert classifier.threshold_ == pytest.approx(sure[len(sure) - math.ceil(0.95 * len(sure))], abs=3e-6)


def test_no_correct_validation_image_means_unsure_about_everything(make, data, fresh):
    marks = data.every(2)
    answers = make("clip").fit(data.images, data.classes, data.environments, marks).predict(data.images)
    others = dict(zip(CLASSES, [*CLASSES[1:], CLASSES[0]], strict=True))
    # zero-shot learns nothing from labels, so these are all wrong
    labels = [others[a] if m else c for a, m, c in zip(answers.tolist(), marks, data.classes, strict=True)]
    classifier = make("clip").fit(data.images, labels, data.environments, marks)
    assert classifier.record_["validation_accuracy"] == 0
    assert classifier.threshold_ == math.inf
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


def test_draws_that_disagree_show_in_the_mutual_information(fit, fresh):
    certain = fit("coop").details(fresh.images)
    narrow = fit("bayes-cal", options={**WIDE, "prior_scale": 0.005}).details(fresh.images)
    wide = fit("bayes-cal", options=WIDE).details(fresh.images)
    assert certain.mutual_information.max() < 1e-6
    assert wide.mutual_information.min() > 1e-4
    assert wide.mutual_information.mean() > 5 * narrow.mutual_information.mean() > 1e-6
    mean_only = fit("bayes-cal", options=WIDE, draws=0).details(fresh.images)
    assert mean_only.mutual_information.max() < 1e-6


def test_a_temperature_leaves_the_mutual_information_alone(fit, fresh):
    """It changes how sure the mean is, not what draws disagree about; without draws there is nothing to disagree."""
    for method, options in (("coop", HALF_LEARNED), ("bayes-cal", {**WIDE, "learning_rate": 0.001})):
        plain, calibrated = (fit(method, options=options, calibrate=c) for c in (False, True))
        assert abs(math.log(calibrated.predictor_.temperature)) > 0.05
        a, b = (c.details(fresh.images) for c in (plain, calibrated))
        assert np.allclose(a.mutual_information, b.mutual_information, atol=1e-12)
        assert not np.allclose(a.entropy, b.entropy, atol=1e-3)


def test_the_environment_is_the_one_that_looks_alike(fitted, fresh):
    assert fitted.details(fresh.images).environment.tolist() == fresh.environments


def test_the_posterior_mean_is_deterministic_and_draws_are_not_it(fit, fresh):
    mean, drawn = (fit("bayes-cal", options=WIDE, draws=draws) for draws in (0, 20))
    for name, value in mean.predictor_.params.items():
        assert value.equal(drawn.predictor_.params[name])  # draws play no part in training
    assert np.array_equal(mean.predict_proba(fresh.images), mean.predict_proba(fresh.images))
    assert np.array_equal(drawn.predict_proba(fresh.images), drawn.predict_proba(fresh.images))
    assert np.abs(mean.predict_proba(fresh.images) - drawn.predict_proba(fresh.images)).max() > 0.01
    # The mean of more draws is nearer to the mean of very many: it is an average, not one draw.
    many = fit("bayes-cal", options=WIDE, draws=400).predict_proba(fresh.images)
    few, more = (fit("bayes-cal", options=WIDE, draws=draws).predict_proba(fresh.images) for draws in (1, 100))
    assert np.abs(more - many).mean() < 0.5 * np.abs(few - many).mean()


def test_the_seed_decides_everything(make, data, fresh):
    fits = [make("bayes-cal", seed=seed).fit(data.images, data.classes, data.environments) for seed in (5, 5, 6)]
    same, again, other = (c.predictor_ for c in fits)
    assert all(value.equal(again.params[name]) for name, value in same.params.items())
    assert same.threshold == again.threshold
    assert same.record["split"] == again.record["split"] != other.record["split"]
    assert not same.params["class.context"].equal(other.params["class.context"])


# ---- training ------------------------------------------------------------------------------------------------------


def test_one_environment_works_and_says_what_is_off(make, data, fresh):
    part = data.take([i for i, e in enumerate(data.environments) if e == "night"])
    for environments in (part.environments, None):
        with pytest.warns(BayescalWarning, match="only one environment"):
            classifier = make("bayes-cal").fit(part.images, part.classes, environments)
        assert set(classifier.predictor_.params) == {"class.context", "class.rho"}
        assert classifier.score(part.images, part.classes) > 0.8
    assert classifier.environments_.tolist() == ["all"]
    assert set(classifier.details(fresh.images).environment) == {"all"}


@pytest.mark.parametrize(
    ("shots", "val_shots", "train", "validation"),
    [(4, None, 12, 12), (5, 2, 15, 6), (2, 0, 6, 0), (None, None, 36, 12), (None, 3, 36, 12)],
)
def test_shots_are_images_per_class(make, data, shots, val_shots, train, validation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescalWarning)
        classifier = make("coop", shots=shots, val_shots=val_shots).fit(data.images, data.classes, data.environments)
    assert (classifier.record_["train_images"], classifier.record_["validation_images"]) == (train, validation)


def test_too_few_images_for_the_shots_is_said(make, data):
    with pytest.warns(BayescalWarning, match="too few images"):
        classifier = make(shots=12).fit(data.images, data.classes, data.environments)
    assert (classifier.record_["train_images"], classifier.record_["validation_images"]) == (36, 12)
    assert len(classifier.record_["notes"]) == 3


def test_marked_images_are_validated_on_and_never_learned_from(make, data, monkeypatch):
    runs = []
    real = bayescal.classifier.train_runs
    monkeypatch.setattr(
        "bayescal.classifier.train_runs", lambda *given, **more: runs.extend(given[2]) or real(*given, **more)
    )
    marks = data.every(4)
    make().fit(data.images, data.classes, data.environments, marks)
    assert runs[0].judged["val"].tolist() == np.flatnonzero(marks).tolist()
    assert runs[0].train.tolist() == np.flatnonzero(~marks).tolist()


def test_a_class_with_validation_images_only_is_refused(make, data):
    with pytest.raises(DataError, match="no image of class 'ball' is left to learn from"):
        make().fit(data.images, data.classes, data.environments, [name == "ball" for name in data.classes])


def test_views_are_trained_on_and_belong_to_their_images(make, data, mini, cache, monkeypatch):
    problems = []
    real = bayescal.classifier.train_runs
    monkeypatch.setattr(
        "bayescal.classifier.train_runs", lambda *given, **more: problems.append(given[1]) or real(*given, **more)
    )
    part = data.take(range(24))
    marks = part.every(2)
    plain, augmented = (make(views=views).fit(part.images, part.classes, part.environments, marks) for views in (0, 2))
    assert (plain.record_["views"], augmented.record_["views"]) == (0, 2)
    assert not plain.predictor_.params["context"].equal(augmented.predictor_.params["context"])
    without, problem = problems
    assert without.views is None
    expected = FeatureBank(mini, cache).encode_views(part.images, 2).features
    train = np.flatnonzero(~marks)
    assert problem.views[problem.view_rows[train]].equal(expected[train])
    assert set(problem.view_rows[marks].tolist()) == {-1}


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


def test_unknown_options_are_refused_with_the_nearest(make, data):
    with pytest.raises(MethodError, match=r"'coop' has no option 'epoch'; did you mean 'epochs'\?"):
        make(options={"epoch": 3}).fit(data.images, data.classes, data.environments)
    with pytest.raises(MethodError, match="has no option 'lambda_irm'"):  # Bayes-CAL has, CoOp has not
        make(options={"lambda_irm": 1.0}).fit(data.images, data.classes, data.environments)


def test_an_unknown_method_is_refused_with_the_nearest(make, data):
    with pytest.raises(MethodError, match="Did you mean 'bayes-cal'"):
        make("bayescal", options={}).fit(data.images, data.classes, data.environments)


def test_options_reach_the_training(fit):
    classifier = fit("bayes-cal", options={"epochs": 2, "position": "middle", "lambda_irm": 0.7})
    assert len(classifier.record_["curves"]["ce"]) == 2
    assert {k: classifier.predictor_.config[k] for k in ("position", "lambda_irm")} == {
        "position": "middle",
        "lambda_irm": 0.7,
    }
    assert classifier.predictor_.config["lambda_env"] == 0.1  # the others stay as they are


def test_context_vectors_count_in_the_room_for_names(make, data):
    with pytest.raises(DataError, match="with 73 context vectors"):
        make(options={**QUICK, "n_context": 73, "context_init": ""}, class_words={"ball": "a ball of wool"}).fit(
            data.images, data.classes, data.environments
        )


def test_an_interrupted_training_continues(make, data, tmp_path, monkeypatch):
    whole = make("bayes-cal", options={"epochs": 4}).fit(data.images, data.classes, data.environments)
    monkeypatch.setattr("bayescal.training.CHECKPOINT_SECONDS", 0.0)
    real = bayescal.training._train_epoch
    monkeypatch.setattr(
        "bayescal.training._train_epoch", lambda m, d, s, epoch, w: 1 / 0 if epoch == 2 else real(m, d, s, epoch, w)
    )
    broken = make("bayes-cal", options={"epochs": 4})
    with pytest.raises(ZeroDivisionError):
        broken.fit(data.images, data.classes, data.environments, checkpoints=tmp_path)
    seen = []
    monkeypatch.setattr(
        "bayescal.training._train_epoch", lambda m, d, s, epoch, w: seen.append(epoch) or real(m, d, s, epoch, w)
    )
    continued = broken.fit(data.images, data.classes, data.environments, checkpoints=tmp_path)
    assert seen == [2, 3]
    for name, value in whole.predictor_.params.items():
        assert value.equal(continued.predictor_.params[name])


def test_a_predictor_can_be_asked_about_features(fitted, fresh, cache):
    predictor: Predictor = fitted.predictor_
    features = FeatureBank(load_backbone("mini"), cache).encode(fresh.images).features
    assert np.array_equal(predictor.details(features).probabilities, fitted.predict_proba(fresh.images))


def test_a_single_path_is_not_a_list():
    with pytest.raises(DataError, match="expected a list of images"):
        FewShotClassifier().fit("photo.jpg", ["a"], ["b"])
