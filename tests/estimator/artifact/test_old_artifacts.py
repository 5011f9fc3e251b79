"""Models that version 0.1.0 wrote: read, they say what they said then; written again, they are of today's format."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescal import FewShotClassifier
from bayescal.backbones import load_backbone
from bayescal.estimator.artifact import FORMAT_VERSION, read_artifact
from bayescal.estimator.predictor import Predictor
from bayescal.methods import get_method
from bayescal.text.tower import LazyTower
from old_files import OLD, expected, makers

MODELS = ("bayes-cal", "coop", "clip")
NUMBERS = ("probabilities", "confidence", "entropy", "mutual_information")
EXACT = ("labels", "unsure", "environment")
# In float32 a processor's own order of additions moves answers: version 0.1.0 itself, run with AVX-512, is 1.2e-6 from
# what it had said with AVX2 (clip, entropy). Whether the same is computed is seen in float64.
EXACT_TO, ROUNDED_TO = 1e-12, 2e-6
# Posterior samples are drawn in float32 even so, and the last bit of its logarithms and cosines is the processor's own.
NOISE_TO = 1e-8


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> str:
    """The name of the backbone they were made with, where its weights are now."""
    return makers().backbone_name(tmp_path_factory.mktemp("backbone"))


def test_the_backbone_is_the_one_they_were_made_with(backbone):
    assert load_backbone(backbone).fingerprint == expected()["backbone"]["fingerprint"]


def float64_of_then() -> dict[str, Any]:
    return json.loads((OLD / "expected_float64.json").read_text())


def plain_pixels() -> Tensor:
    return torch.from_numpy(np.stack(makers().new_images())).permute(0, 3, 1, 2).double() / 255


@torch.no_grad()
def test_the_image_tower_computes_the_same(backbone):
    visual = copy.deepcopy(load_backbone(backbone).visual).double()
    then = torch.tensor(float64_of_then()["features_of_plain_pixels"], dtype=torch.float64)
    torch.testing.assert_close(visual(plain_pixels()), then, rtol=0, atol=EXACT_TO)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_old_models_compute_the_same(name, backbone):
    read = Predictor.load(OLD / "models" / name, backbone)
    tower = LazyTower.of(copy.deepcopy(read.backbone.text).double())
    params = {key: value.double() for key, value in read.params.items()}
    model = replace(read, backbone=replace(read.backbone, tower=tower), params=params)
    features = torch.tensor(float64_of_then()["features_of_plain_pixels"], dtype=torch.float64)
    now, then = model.posterior(features), float64_of_then()["models"][name]
    tolerance = NOISE_TO if get_method(model.method).has_posterior else EXACT_TO
    np.testing.assert_allclose(now.probs, then["probabilities"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(now.mutual_information, then["mutual_information"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_version_that_wrote_the_model(name, backbone, tmp_path):
    then = expected()["models"][name]
    classifier = FewShotClassifier.load(OLD / "models" / name, backbone=backbone, cache=tmp_path / "cache")
    classifier.save(tmp_path / "again")
    again = FewShotClassifier.load(tmp_path / "again", backbone=backbone, cache=tmp_path / "cache")
    answers = [model.details(makers().new_images()) for model in (classifier, again)]
    for field in NUMBERS:
        np.testing.assert_array_equal(getattr(answers[0], field), getattr(answers[1], field), err_msg=field)
    for model, now in zip((classifier, again), answers, strict=True):
        for field in NUMBERS:
            np.testing.assert_allclose(getattr(now, field), then[field], rtol=0, atol=ROUNDED_TO, err_msg=field)
        for field in EXACT:
            assert getattr(now, field).tolist() == then[field], field
        assert model.threshold_ == (math.inf if then["threshold"] is None else then["threshold"])
        assert model.predictor_.temperature == then["temperature"]
        assert (model.samples, model.predictor_.seeds) == (then["draws"], then["seeds"])
        assert model.predictor_.config == then["config"]
        assert model.record_["best_epoch"] == then["best_epoch"]


@pytest.mark.parametrize("name", MODELS)
def test_an_old_config_comes_in_the_words_of_today(name, backbone, tmp_path):
    _, old = read_artifact(OLD / "models" / name)
    assert "draws" not in old
    Predictor.load(OLD / "models" / name, backbone).save(tmp_path / "again")
    _, new = read_artifact(tmp_path / "again")
    assert (old["format_version"], new["format_version"]) == (1, FORMAT_VERSION)
    assert new.keys() - old.keys() == {"expected", "prepared", "training_images", "unfamiliar_below"}
    assert not old.keys() - new.keys()
    for key in old.keys() - {"format_version", "versions", "files", "backbone"}:
        assert old[key] == new[key], key
