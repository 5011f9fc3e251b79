"""FewShotClassifier: which images it learns from and validates on, and how options reach the training."""

import warnings

import numpy as np
import pytest
from classifying import QUICK

import bayescal.estimator.fitting
from bayescal.errors import BayescalWarning, DataError, MethodError
from bayescal.features import FeatureBank

pytestmark = pytest.mark.xdist_group("classifier")


def test_one_environment_works_and_says_what_is_off(make, data, fresh):
    part = data.take([i for i, e in enumerate(data.environments) if e == "night"])
    for environments in (part.environments, None):
        with pytest.warns(BayescalWarning, match="only one environment"):
            classifier = make("bayes-cal", options={"epochs": 20}).fit(part.images, part.classes, environments)
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
    real = bayescal.estimator.fitting.train_runs
    monkeypatch.setattr(
        "bayescal.estimator.fitting.train_runs", lambda *given, **more: runs.extend(given[2]) or real(*given, **more)
    )
    marks = data.every(4)
    make().fit(data.images, data.classes, data.environments, marks)
    assert runs[0].eval_sets["val"].tolist() == np.flatnonzero(marks).tolist()
    assert runs[0].train.tolist() == np.flatnonzero(~marks).tolist()


def test_a_class_with_validation_images_only_is_refused(make, data):
    with pytest.raises(DataError, match="no image of class 'ball' is left to learn from"):
        make().fit(data.images, data.classes, data.environments, [name == "ball" for name in data.classes])


def test_views_are_trained_on_and_belong_to_their_images(make, data, mini, cache, monkeypatch):
    problems = []
    real = bayescal.estimator.fitting.train_runs
    monkeypatch.setattr(
        "bayescal.estimator.fitting.train_runs",
        lambda *given, **more: problems.append(given[1]) or real(*given, **more),
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
    monkeypatch.setattr("bayescal.training.loop.CHECKPOINT_SECONDS", 0.0)
    real = bayescal.training.loop._train_epoch
    monkeypatch.setattr(
        "bayescal.training.loop._train_epoch",
        lambda m, d, s, epoch, w: 1 / 0 if epoch == 2 else real(m, d, s, epoch, w),
    )
    broken = make("bayes-cal", options={"epochs": 4})
    with pytest.raises(ZeroDivisionError):
        broken.fit(data.images, data.classes, data.environments, checkpoints=tmp_path)
    seen = []
    monkeypatch.setattr(
        "bayescal.training.loop._train_epoch", lambda m, d, s, epoch, w: seen.append(epoch) or real(m, d, s, epoch, w)
    )
    continued = broken.fit(data.images, data.classes, data.environments, checkpoints=tmp_path)
    assert seen == [2, 3]
    for name, value in whole.predictor_.params.items():
        assert value.equal(continued.predictor_.params[name])
