"""What a model keeps of the images it was made from."""

import hashlib
import os
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bayescal import FewShotClassifier
from bayescal.estimator.artifact import read_artifact
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.training_images import TrainingImages
from pictures import make_pictures, save_pictures


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data():
    return make_pictures(4)


@pytest.fixture(scope="module")
def paths(data, tmp_path_factory):
    return save_pictures(data.images, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def fitted(data, paths, cache):
    classifier = FewShotClassifier("logistic-regression", cache=cache)
    return classifier.fit(paths, data.classes, data.environments, data.every(2))


def some(n: int = 5, dim: int = 8, names: tuple[str, ...] | None = None) -> TrainingImages:
    random = np.random.default_rng(0)
    images = LabelledImages.from_lists(
        names or [f"/photos/{i}.png" for i in range(n)], ["ab"[i % 2] for i in range(n)], ["in"] * n
    )
    digests = random.integers(0, 256, (n, 32), dtype=np.uint8)
    return TrainingImages.of(torch.from_numpy(random.normal(size=(n, dim)).astype(np.float32)), images, digests, n - 1)


def test_every_image_is_kept_with_what_is_known_of_it(fitted, data, paths):
    kept = fitted.predictor_.training
    marked = np.array(data.every(2))
    order = np.concatenate([np.flatnonzero(~marked), np.flatnonzero(marked)])
    assert kept.names == tuple(str(paths[i]) for i in order)
    assert kept.n_train == (~marked).sum()
    assert kept.validation.tolist() == [False] * (~marked).sum() + [True] * marked.sum()
    assert fitted.classes_[kept.class_ids].tolist() == [data.classes[i] for i in order]
    assert fitted.environments_[kept.environment_ids].tolist() == [data.environments[i] for i in order]
    assert [bytes(row).hex() for row in kept.hashes] == [
        hashlib.sha256(paths[i].read_bytes()).hexdigest() for i in order
    ]


def test_features_are_those_of_the_backbone(fitted, paths):
    kept = fitted.predictor_.training
    again = fitted._bank().encode(kept.names).features  # in other batches
    torch.testing.assert_close(kept.features, again, rtol=0, atol=1e-5)


def test_a_loaded_model_has_them_and_old_ones_have_none(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    kept, again = fitted.predictor_.training, FewShotClassifier.load(tmp_path / "model").predictor_.training
    for name in ("names", "n_train", "environment_words"):
        assert getattr(again, name) == getattr(kept, name)
    for name in ("hashes", "class_ids", "environment_ids"):
        assert np.array_equal(getattr(again, name), getattr(kept, name))
    assert again.directions.equal(kept.directions)
    assert again.lengths.equal(kept.lengths)
    assert TrainingImages.restore({}, None) is None


def test_on_disk_the_features_are_there_once(fitted, tmp_path):
    """The familiarity keeps the same rows; an artifact holds what it repeats only once."""
    fitted.save(tmp_path / "model")
    tensors, _ = read_artifact(tmp_path / "model")
    assert tensors["familiarity/images"].data_ptr() == tensors["training/images"].data_ptr()


def test_the_nearest_images_are_those_of_the_largest_cosine():
    kept = some(40)
    queries = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    numbers, cosines = kept.nearest(queries, 3)
    every = F.normalize(queries, dim=-1) @ F.normalize(kept.features[:39], dim=-1).T  # not the one for validation
    expected = every.sort(dim=1, descending=True)
    assert numbers.tolist() == expected.indices[:, :3].tolist()
    torch.testing.assert_close(cosines, expected.values[:, :3])
    assert kept.nearest(queries[:0], 3)[0].shape == (0, 3)
    assert some(3).nearest(queries, 9)[0].shape == (7, 2), "as many as there are"


def test_contents_are_known_again_whatever_they_are_called():
    kept = some(300)
    asked = np.random.default_rng(5).integers(0, 256, (500, 32), dtype=np.uint8)
    asked[[3, 77]] = kept.hashes[[299, 12]]
    assert np.flatnonzero(kept.contains(asked)).tolist() == [3, 77]
    almost = kept.hashes[:1].copy()
    almost[0, -1] ^= 1
    assert not kept.contains(almost).any()
    assert kept.contains(asked[:0]).shape == (0,)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_names_come_back_even_where_they_are_not_text():
    odd = (os.fsdecode(b"/photos/\xff.png"), "/photos/ü 1.png", "s3://bucket/a.png")
    kept = some(3, names=odd)
    again = TrainingImages.restore(kept.tensors(), kept.description())
    assert again is not None
    assert again.names == odd


def test_paths_last_and_images_without_one_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = LabelledImages.from_lists(["a.png", np.zeros((2, 2, 3), np.uint8)], ["a", "b"])
    kept = TrainingImages.of(torch.ones(2, 4), images, np.zeros((2, 32), np.uint8), 2)
    assert kept.names == (str(tmp_path / "a.png"), "image 1 of the list")
