"""FewShotClassifier by default: several methods in one model, that says what to expect and what it does not know."""

import numpy as np
import pytest
from classifying import entropy

from bayescal import FewShotClassifier
from bayescal.errors import BayescalError, BayescalWarning
from bayescal.estimator import members
from bayescal.estimator.members import MEMBERS
from bayescal.estimator.predictor import StackedPredictor

pytestmark = pytest.mark.xdist_group("classifier")


@pytest.fixture(scope="module")
def auto(cache, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "STEPS", 10)
        return FewShotClassifier(cache=cache).fit(data.images, data.classes, data.environments)


def test_it_is_the_default_and_learns_from_all_images(auto, data):
    assert FewShotClassifier().method == auto.method == "auto"
    assert isinstance(auto.predictor_, StackedPredictor)
    assert (auto.record_["train_images"], auto.record_["validation_images"]) == (len(data.images), 0)
    assert auto.record_["left_out"] == "environments"
    assert [row["member"] for row in auto.record_["members"]] == [member.name for member in MEMBERS]


def test_it_keeps_how_it_was_checked(auto, data):
    """Per environment left out in turn: the same hits that the estimate comes from."""
    checked = auto.record_["checked"]
    assert checked["on"] == "environments"
    assert checked["images"] == len(data.images) == sum(row["images"] for row in checked["classes"])
    by_name = {row["name"]: row["accuracy"] for row in checked["environments"]}
    assert set(by_name) == set(data.environments)
    assert auto.expected_.unseen == pytest.approx(np.mean(list(by_name.values())))
    assert sum(n for n in checked["reliability"]["count"] if n) == len(data.images)


def test_answers_are_the_weighted_mean_of_the_members(auto, fresh):
    details = auto.details(fresh.images)
    features = auto._bank().encode(fresh.images).features
    parts = [member.posterior(features).probs.numpy() for member in auto.predictor_.members.values()]
    mixed = np.einsum("k,knc->nc", auto.predictor_.weights.numpy(), np.stack(parts))
    warm = mixed ** (1 / auto.predictor_.temperature)
    assert details.probabilities == pytest.approx(warm / warm.sum(1, keepdims=True), abs=1e-5)
    assert (details.labels == fresh.classes).mean() > 0.8


def test_uncertainty_has_three_parts_that_add_up(auto, fresh):
    """Entropy of the mixture = disagreement of members + what members do not know + the rest, at temperature 1."""
    features = auto._bank().encode(fresh.images).features
    predictor = auto.predictor_
    temperature, predictor.temperature = predictor.temperature, 1.0
    try:
        probs, information, disagreement = (part.numpy() for part in predictor.posterior(features))
    finally:
        predictor.temperature = temperature
    weights = predictor.weights.numpy()
    members_ = [member.posterior(features) for member in predictor.members.values()]
    own = sum(
        w * (entropy(m.probs.numpy()) - m.mutual_information.numpy()) for w, m in zip(weights, members_, strict=True)
    )
    assert entropy(probs) == pytest.approx(disagreement + information + own, abs=1e-5)
    assert (disagreement >= 0).all()
    assert disagreement.max() > 0


def test_a_saved_model_answers_as_before(auto, fresh, tmp_path, cache):
    auto.save(tmp_path / "model")
    again = FewShotClassifier.load(tmp_path / "model", cache=cache)
    before, after = auto.details(fresh.images), again.details(fresh.images)
    for name in ("probabilities", "familiarity", "disagreement", "mutual_information"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-6), name
    assert np.array_equal(after.unfamiliar, before.unfamiliar)
    assert again.method == "auto"
    assert again.expected_ == auto.expected_
    assert again.threshold_ == auto.threshold_
    assert again.record_["members"] == auto.record_["members"]


def test_training_images_are_kept_once(auto, tmp_path):
    """Two caches of Tip-Adapter and familiarity compare with the same images."""
    auto.save(tmp_path / "model")
    tensors = sum(value.nbytes for value in auto.predictor_.tensors().values())
    images = auto.predictor_.familiarity.images.nbytes
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < tensors - 2 * images + 20_000


def test_what_to_expect(auto):
    expected = auto.expected_
    assert 0 <= expected.low <= expected.unseen <= expected.high <= 1
    assert expected.worst in ("night", "snow")
    assert expected.sentence().startswith("In an environment it has not seen, expect about")


def test_noise_and_blanks_are_unfamiliar(auto, fresh):
    noise = [np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8) for i in range(5)]
    plain = [np.full((64, 64, 3), grey, dtype=np.uint8) for grey in (0, 90, 255)]
    assert set(auto.predict_selective([*noise, *plain])) == {"unfamiliar"}
    assert "unfamiliar" not in auto.predict_selective(fresh.images).tolist()[:3]


def test_images_marked_for_validation_are_measured_on_and_not_learned(cache, data, monkeypatch):
    monkeypatch.setattr(members, "STEPS", 5)
    marked = data.every(3)
    classifier = FewShotClassifier(cache=cache).fit(data.images, data.classes, data.environments, marked)
    assert classifier.record_["train_images"] == int((~np.asarray(marked)).sum())
    assert classifier.record_["validation_images"] == int(np.asarray(marked).sum())
    images = [image for image, own in zip(data.images, marked, strict=True) if own]
    classes = np.asarray(data.classes)[np.asarray(marked)]
    assert classifier.record_["validation_accuracy"] == pytest.approx((classifier.predict(images) == classes).mean())


def test_copies_among_marked_training_images_are_used_once(cache, data, monkeypatch):
    """A copy in another environment would be known to the models that must not know it."""
    monkeypatch.setattr(members, "STEPS", 5)
    images, classes = [*data.images, *data.images[:6]], [*data.classes, *data.classes[:6]]
    environments = [*data.environments, *(["night" if e == "snow" else "snow" for e in data.environments[:6]])]
    marked = [*data.every(3), *([False] * 6)]
    classifier = FewShotClassifier(cache=cache).fit(images, classes, environments, marked)
    copied = sum(not own for own in data.every(3)[:6])
    assert classifier.record_["train_images"] == int((~np.asarray(marked)).sum()) - copied
    assert any("copy of another one" in note for note in classifier.record_["notes"])


def test_with_an_image_per_class_nothing_is_called_unsure_and_it_says_so(cache, data, monkeypatch):
    monkeypatch.setattr(members, "STEPS", 5)
    with pytest.warns(BayescalWarning, match="no answer will be called unsure"):
        classifier = FewShotClassifier(cache=cache, shots=1).fit(data.images, data.classes)
    assert classifier.threshold_ == 0.0
    assert "unsure" not in classifier.predict_selective(data.images)


def test_shots_are_images_per_class_in_all(cache, data, monkeypatch):
    monkeypatch.setattr(members, "STEPS", 5)
    classifier = FewShotClassifier(cache=cache, shots=4).fit(data.images, data.classes, data.environments)
    assert classifier.record_["train_images"] == 3 * 4


def test_one_environment_says_that_it_cannot_know(cache, data, monkeypatch):
    monkeypatch.setattr(members, "STEPS", 5)
    classifier = FewShotClassifier(cache=cache).fit(data.images, data.classes)
    assert classifier.record_["left_out"] == "folds"
    assert classifier.expected_.unseen is None
    assert "cannot be known" in classifier.expected_.sentence()


@pytest.mark.parametrize("given", [{"options": {"epochs": 3}}, {"val_shots": 2}, {"trials": 2}, {"members": 2}])
def test_what_only_a_single_method_can_be_told_is_refused(data, given):
    with pytest.raises(BayescalError, match=f"{next(iter(given))} is for a single method"):
        FewShotClassifier(**given).fit(data.images, data.classes, data.environments)


def test_bayes_cal_alone_mixes_its_own_kind(cache, data, fresh, tmp_path, monkeypatch):
    """Left-out environments weigh β and shared or own contexts; saved, loaded and added to under its name."""
    monkeypatch.setattr(members, "STEPS", 5)
    mixed = FewShotClassifier("bayes-cal-mixed", cache=cache).fit(data.images, data.classes, data.environments)
    own = mixed.predictor_.members
    assert {member.method_name for member in own.values()} == {"bayes-cal"}
    assert {(member.config["beta"], member.config["class_specific"]) for member in own.values()} == {
        (1.0, True), (0.3, True), (0.1, True), (0.3, False),
    }  # fmt: skip
    assert mixed.expected_.unseen is not None
    mixed.save(tmp_path / "model")
    again = FewShotClassifier.load(tmp_path / "model", cache=cache)
    assert again.method == again.predictor_.method_name == "bayes-cal-mixed"
    assert again.predict_proba(fresh.images) == pytest.approx(mixed.predict_proba(fresh.images), abs=1e-6)
    again.add(fresh.images, fresh.classes, fresh.environments)
    assert again.predictor_.method_name == "bayes-cal-mixed"
    assert set(again.predictor_.members) == set(own)
    with pytest.raises(BayescalError, match="'bayes-cal-mixed' mixes several"):
        FewShotClassifier("bayes-cal-mixed", options={"beta": 1.0}).fit(data.images, data.classes)
