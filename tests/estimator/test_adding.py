"""More images for a model that exists."""

import shutil

import numpy as np
import pytest
import torch

from bayescal import FewShotClassifier
from bayescal.errors import ArtifactError, BayescalWarning, DataError
from bayescal.estimator import members
from pictures import Pictures, make_pictures, picture, save_pictures

METHODS = {"logistic-regression": {}, "coop": {"options": {"epochs": 2}}, "tip-adapter": {}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def joined(one: Pictures, two: Pictures) -> Pictures:
    return Pictures(one.images + two.images, one.classes + two.classes, one.environments + two.environments)


def fit(method: str, data: Pictures, cache, validation=None, **changes) -> FewShotClassifier:
    classifier = FewShotClassifier(method, cache=cache, **METHODS.get(method, {}), **changes)
    return classifier.fit(data.images, data.classes, data.environments, validation)


def rings(n: int) -> Pictures:
    """A class that nobody has shown yet, in the environments that are known."""
    cells = [(e, i) for i in range(n) for e in ("night", "snow")]
    return Pictures([picture("tent", e, 500 + i) for e, i in cells], ["ring"] * len(cells), [e for e, _ in cells])


@pytest.mark.parametrize("method", ["logistic-regression", "tip-adapter"])
def test_adding_is_as_fitting_on_everything(method, cache):
    """Up to rounding; and although all that is left of the old images is what the model keeps."""
    first, more, asked = make_pictures(4), make_pictures(3, first=50), make_pictures(3, first=90)
    marks = first.every(2)
    classifier = fit(method, first, cache, marks)
    said = classifier.add(more.images, more.classes, more.environments)
    together = joined(first, more)
    whole = fit(method, together, cache, np.concatenate([marks, np.zeros(len(more), bool)]))
    np.testing.assert_allclose(classifier.predict_proba(asked.images), whole.predict_proba(asked.images), atol=2e-4)
    assert said.added == len(more)
    assert (said.new_classes, said.new_environments) == ((), ())
    assert classifier.record_["train_images"] == whole.record_["train_images"]
    assert classifier.threshold_ == pytest.approx(whole.threshold_, abs=1e-3)


@pytest.fixture
def few_members(monkeypatch):
    """`auto` with those of its members that need no training loop: the others take ten times as long."""
    few = tuple(m for m in members.MEMBERS if m.method in ("clip", "logistic-regression", "tip-adapter"))
    monkeypatch.setitem(members.MIXTURES, "auto", few)


def test_auto_learns_a_new_class_and_environment_although_every_old_image_is_gone(few_members, tmp_path):
    data, folder = make_pictures(3), tmp_path / "images"
    paths = save_pictures(data.images, folder)
    classifier = FewShotClassifier(cache=tmp_path / "one").fit(paths, data.classes, data.environments)
    classifier.save(tmp_path / "model")
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / "one")
    loaded = FewShotClassifier.load(tmp_path / "model", cache=tmp_path / "two")
    new = rings(4)
    said = loaded.add(new.images, new.classes, ["fog" if e == "snow" else e for e in new.environments])
    assert loaded.classes_.tolist() == ["ball", "box", "ring", "tent"]
    assert loaded.environments_.tolist() == ["fog", "night", "snow"]
    assert (said.new_classes, said.new_environments) == (("ring",), ("fog",))
    assert loaded.predict_proba(new.images[:2]).shape == (2, 4)
    assert said.before == 0, "the old model could not know the class"
    assert said.compared == 8
    assert said.after is not None
    assert loaded.expected_.unseen is not None
    assert loaded.record_["additions"] == [
        {"images": 8, "classes": ["ring"], "environments": ["fog"], "before": 0.0, "after": said.after, "compared": 8}
    ]
    loaded.save(tmp_path / "again")
    kept = FewShotClassifier.load(tmp_path / "again").predictor_.training
    assert len(kept) == len(data) + 8


def test_after_is_measured_on_images_that_were_not_learned_from(cache):
    """Labels at random cannot be answered: whoever had learned from the images themselves would."""
    data, more = make_pictures(4), make_pictures(6, first=200)
    shuffled = np.random.default_rng(1).permutation(more.classes).tolist()
    classifier = fit("logistic-regression", data, cache, data.every(3), options={"strength": 1e3})
    said = classifier.add(more.images, shuffled, more.environments)
    learned = np.mean(classifier.predict(more.images) == np.array(shuffled))
    assert learned > 0.9
    assert said.after < 0.6


def test_an_image_given_again_is_left_out_or_relabelled(cache):
    data = make_pictures(3)
    classifier = fit("logistic-regression", data, cache)
    n = len(classifier.predictor_.training)
    with pytest.raises(DataError, match="nothing to add"):
        classifier.add(data.images, data.classes, data.environments)
    relabelled = ["box" if i == 0 else name for i, name in enumerate(data.classes)]
    said = classifier.add(data.images, relabelled, data.environments)
    assert (said.added, said.relabelled, said.known) == (1, 1, len(data) - 1)
    kept = classifier.predictor_.training
    assert len(kept) == n
    of_the_first = np.flatnonzero(kept.contains(kept.hashes) & (classifier.classes_[kept.class_ids] == "box"))
    assert len(of_the_first) == relabelled.count("box")


def test_relabelled_images_are_not_compared_on(cache):
    """The old model learned from them: what it says of them tells nothing."""
    data, more = make_pictures(3), make_pictures(2, first=60)
    relabelled = data.take(np.arange(3))
    other = ["box" if name == "tent" else "tent" for name in relabelled.classes]
    classifier = fit("logistic-regression", data, cache)
    said = classifier.add(relabelled.images, other, relabelled.environments)
    assert (said.added, said.relabelled, said.compared, said.before, said.after) == (3, 3, 0, None, None)
    classifier = fit("logistic-regression", data, cache)
    images, classes = relabelled.images + more.images, other + more.classes
    said = classifier.add(images, classes, relabelled.environments + more.environments)
    assert (said.added, said.relabelled, said.compared) == (len(more) + 3, 3, len(more))


def test_the_same_image_under_two_classes_is_refused(cache):
    data, one = make_pictures(3), make_pictures(1, first=70)
    classifier = fit("logistic-regression", data, cache)
    with pytest.raises(DataError, match="two classes: box as image 0 of the list and ball as image 1"):
        classifier.add([one.images[0], one.images[0]], ["box", "ball"], ["snow", "snow"])


def test_without_old_files_a_method_with_views_learns_without_them_and_says_so(tmp_path):
    data, more = make_pictures(2), make_pictures(1, first=30)
    paths = save_pictures(data.images, tmp_path / "images")
    classifier = FewShotClassifier("coop", cache=tmp_path / "cache", options={"epochs": 1}, views=2)
    classifier.fit(paths, data.classes, data.environments, data.every(2)).save(tmp_path / "model")
    assert classifier.record_["views"] == 2
    shutil.rmtree(tmp_path / "images")
    classifier.add(more.images, more.classes, more.environments, compare=False)
    assert classifier.record_["views"] == 2, "found in the cache, by content"
    loaded = FewShotClassifier.load(tmp_path / "model", cache=tmp_path / "empty")
    with pytest.warns(BayescalWarning, match="learned without the 2 augmented views"):
        loaded.add(more.images, more.classes, more.environments, compare=False)
    assert loaded.record_["views"] == 0


def test_a_model_that_keeps_nothing_says_what_to_do(cache):
    data = make_pictures(2)
    classifier = fit("clip", data, cache)
    classifier.predictor_.training = None
    with pytest.raises(ArtifactError, match=r"keeps none of the images .* fit it again"):
        classifier.add(data.images, data.classes, data.environments)


def test_an_ensemble_stays_one(cache):
    data, more = make_pictures(3), make_pictures(1, first=30)
    classifier = fit("coop", data, cache, data.every(3), members=2, seed=5)
    classifier.add(more.images, more.classes, more.environments)
    assert classifier.predictor_.seeds == [5, 6]
    assert all(len(value) == 2 for value in classifier.predictor_.params.values())
    assert isinstance(classifier.predictor_.posterior(torch.zeros(1, 512)).probs, torch.Tensor)
