"""FewShotClassifier: every kind of image and label, words for labels, images that cannot be read."""

import io

import numpy as np
import pytest

from bayescal import FewShotClassifier
from bayescal.errors import BayescalWarning, DataError
from pictures import CLASSES, ENVIRONMENTS, save_pictures

pytestmark = pytest.mark.xdist_group("classifier")


def test_every_kind_of_image_gives_the_same_answer(fitted, fresh, tmp_path):
    paths = save_pictures(fresh.images, tmp_path)
    expected = fitted.predict_proba(fresh.images)
    for images in (
        paths,
        [str(path) for path in paths],
        np.array([str(path) for path in paths]),
        [path.read_bytes() for path in paths],
        [io.BytesIO(path.read_bytes()) for path in paths],
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
    classifier.predictor_.familiarity = None  # "unfamiliar" is said first
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
    with pytest.raises(DataError, match=f"{kind}: there is no .* 'bal'"):
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
    # What is left is what a fit without them learns: no row slipped. Not to the last digit: other images share a batch
    # of the image tower, which rounds differently then. A slipped row moves probabilities by tenths.
    rows = [i for i in range(len(data)) if i not in (5, 17)]
    part = data.take(rows)
    same = make().fit(part.images, part.classes, part.environments, data.every(2)[rows])
    assert np.allclose(classifier.predict_proba(data.images), same.predict_proba(data.images), atol=1e-3)


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
