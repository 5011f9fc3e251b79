"""FewShotClassifier and manifests: the same as lists, splits respected, each file hashed once; and its evaluation."""

import numpy as np
import pytest

from bayescal import FewShotClassifier, Manifest
from bayescal.errors import ArtifactError, DataError
from bayescal.estimator import base_predictor
from bayescal.estimator.artifact import read_artifact, write_artifact
from bayescal.estimator.predictor import Predictor
from bayescal.estimator.training_data import choose_training_data
from bayescal.features import decode
from pictures import save_pictures

pytestmark = pytest.mark.xdist_group("classifier")


@pytest.fixture(scope="module")
def paths(data, tmp_path_factory) -> list[str]:
    return [str(path) for path in save_pictures(data.images, tmp_path_factory.mktemp("pictures"))]


def manifest_of(data, paths, splits=None, **words) -> Manifest:
    return Manifest.from_columns(paths, data.classes, data.environments, splits, **words)


def test_a_manifest_is_as_good_as_lists(make, data, paths):
    words = {"class_words": {"ball": "round ball"}, "environment_words": {"snow": "a white field"}}
    lists = make("bayes-cal", **words).fit(paths, data.classes, data.environments)
    manifest = make("bayes-cal").fit(manifest_of(data, paths, **words))
    assert manifest.classes_.tolist() == lists.classes_.tolist()
    assert manifest.class_words_ == lists.class_words_ == ("round ball", "box", "tent")
    assert manifest.predictor_.trained_environments == lists.predictor_.trained_environments
    assert manifest.record_["split"] == lists.record_["split"]
    assert np.array_equal(manifest.predict_proba(paths), lists.predict_proba(paths))
    assert manifest.threshold_ == lists.threshold_


def test_its_splits_are_respected(make, data, paths):
    splits = ["test" if i % 4 == 0 else "val" if i % 4 == 1 else "train" for i in range(len(paths))]
    classifier = make().fit(manifest_of(data, paths, splits))
    assert classifier.record_["train_images"] == splits.count("train")
    assert classifier.record_["validation_images"] == splits.count("val")


def test_environments_that_are_left_out_are_not_learned(make, data, paths):
    chosen = choose_training_data(manifest_of(data, paths), ["snow"], None, None, seed=1)
    with pytest.warns(match="only one environment"):
        classifier = make("cal").fit(chosen)
    assert classifier.environments_.tolist() == ["night"]


def test_labels_beside_a_manifest_are_refused(make, data, paths):
    with pytest.raises(DataError, match="pass it alone"):
        make().fit(manifest_of(data, paths), data.classes)
    with pytest.raises(DataError, match="expected the classes of the images"):
        make().fit(paths)


@pytest.mark.parametrize("with_splits", [False, True])
def test_every_file_is_hashed_once(data, paths, tmp_path, monkeypatch, with_splits):
    """For leaks between splits, for the features and for their augmented views."""
    hashed: list[str] = []
    real = decode.digests
    monkeypatch.setattr(decode, "digests", lambda sources: hashed.extend(map(str, sources)) or real(sources))
    splits = ["val" if i % 3 == 0 else "train" for i in range(len(paths))] if with_splits else None
    classifier = FewShotClassifier("coop", cache=tmp_path, views=2, options={"epochs": 1})
    classifier.fit(manifest_of(data, paths, splits))
    assert sorted(hashed) == sorted(paths)
    assert classifier.record_["views"] == 2


def test_evaluation_is_that_of_the_answers(fitted, fresh):
    found = fitted.evaluate(fresh.images, fresh.classes, fresh.environments)
    details = fitted.details(fresh.images)
    right = details.labels == np.array(fresh.classes)
    sure = ~details.unsure
    assert found.scores.images == len(fresh)
    assert found.scores.accuracy == pytest.approx(right.mean())
    assert found.scores.coverage == pytest.approx(sure.mean())
    assert found.scores.selective_accuracy == pytest.approx(right[sure].mean())
    for own in found.environments:
        assert own.seen
        assert own.accuracy == pytest.approx(right[np.array(fresh.environments) == own.name].mean())
    assert found.worst_environment.accuracy == found.scores.worst_environment
    assert sum(map(sum, found.confusion_matrix)) == len(fresh)
    assert {each.name: each.images for each in found.classes} == {name: fresh.classes.count(name) for name in found.class_names}  # fmt: skip  # noqa: E501
    elsewhere = fitted.evaluate(fresh.images, fresh.classes, ["the moon"] * len(fresh))
    assert [own.seen for own in elsewhere.environments] == [False]


def test_unknown_classes_are_refused_in_an_evaluation(fitted, fresh):
    with pytest.raises(DataError, match="does not know 1 of the 3 classes in the data: cube"):
        fitted.evaluate(fresh.images, ["cube" if name == "box" else name for name in fresh.classes])


def test_a_kind_of_model_that_nobody_registered_is_refused(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path / "model")
    tensors, config = read_artifact(tmp_path / "model")
    other = {name: value for name, value in config.items() if name not in ("format", "format_version", "files")}
    write_artifact(tmp_path / "other", tensors, {"kind": "statue", **other})
    with pytest.raises(ArtifactError, match=r"of the kind 'statue', and only few-shot.* can be read here"):
        FewShotClassifier.load(tmp_path / "other")
    monkeypatch.setattr(base_predictor, "_kinds", dict(base_predictor._kinds))
    base_predictor.register_kind("statue", Predictor.restore)
    assert FewShotClassifier.load(tmp_path / "other").classes_.tolist() == fitted.classes_.tolist()
