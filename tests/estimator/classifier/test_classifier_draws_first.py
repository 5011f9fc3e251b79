"""With few shots, images are drawn first: only these are encoded, and damaged ones among them are replaced."""

import warnings

import numpy as np
import pytest
from classifying import QUICK

from bayescal import FewShotClassifier
from bayescal.errors import BayescalWarning
from pictures import save_pictures

pytestmark = pytest.mark.xdist_group("classifier")
BEFORE = "872b84195dc1"  # of the split that versions drew which encoded everything first


@pytest.fixture
def encoded(monkeypatch):
    """The images that go through the image tower."""
    import bayescal.features.bank as module

    seen: list[str] = []
    real = module.compute

    def compute(backbone, images, *rest):
        images = list(images)
        seen.extend(str(image.source) for image in images)
        return real(backbone, images, *rest)

    monkeypatch.setattr(module.FeatureBank.__init__, "__defaults__", (None, None, 64, compute))
    return seen


def quiet_fit(method, paths, data, folder, **more) -> FewShotClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescalWarning)
        classifier = FewShotClassifier(method, cache=folder, views=0, **more)
        return classifier.fit([str(path) for path in paths], data.classes, data.environments)


def test_only_what_is_drawn_is_encoded(data, tmp_path, encoded):
    classifier = quiet_fit("clip", save_pictures(data.images, tmp_path / "images"), data, tmp_path, shots=2)
    assert len(encoded) == len(set(encoded)) == 12
    assert classifier.record_["train_images"] + classifier.record_["validation_images"] == 12


def test_auto_encodes_only_what_is_drawn(data, tmp_path, encoded, monkeypatch):
    monkeypatch.setattr("bayescal.estimator.auto.train_stacked", lambda *given: 1 / 0)  # encoding is over by then
    with pytest.raises(ZeroDivisionError):
        quiet_fit("auto", save_pictures(data.images, tmp_path / "images"), data, tmp_path, shots=2)
    assert len(encoded) == 6


def test_the_draw_is_the_one_it_always_was(data, tmp_path):
    classifier = FewShotClassifier("coop", options=QUICK, cache=tmp_path, shots=2, views=0)
    assert classifier.fit(data.images, data.classes, data.environments).record_["split"].startswith(BEFORE)


def test_damaged_images_are_replaced_as_if_they_had_never_been_there(data, tmp_path, encoded):
    paths = save_pictures(data.images, tmp_path / "images")
    tents = [path for path, name in zip(paths, data.classes, strict=True) if name == "tent"]
    for path in tents[::2]:  # cut short: the header is whole, so only decoding tells
        path.write_bytes(path.read_bytes()[:-40])
    damaged = quiet_fit("clip", paths, data, tmp_path / "second", shots=2)
    assert damaged.record_["unreadable_images"] == len(tents[::2])
    assert any(str(path) in encoded for path in tents[::2])  # one was drawn, else this would show nothing
    kept = [i for i, path in enumerate(paths) if path not in tents[::2]]
    clean = quiet_fit("clip", [paths[i] for i in kept], data.take(kept), tmp_path / "third", shots=2)
    assert damaged.record_["split"] == clean.record_["split"]
    fresh = [data.images[i] for i in kept[:6]]
    assert np.allclose(damaged.predict_proba(fresh), clean.predict_proba(fresh), atol=1e-3)
