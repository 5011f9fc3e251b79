"""The graph says what the model says: every method, a mixture of them, and what is refused."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from exporting import drawn, features_of, predictor, stacked
from onnxruntime import InferenceSession
from torch import Tensor, nn

import tiny
from bayescal.errors import BayescalError
from bayescal.estimator.prediction import Prediction
from bayescal.export import export_model
from bayescal.export.answering import MethodBelief, check_exportable
from bayescal.export.check import Sample
from bayescal.export.graph import checked, traced
from bayescal.export.reading import ExportedModel
from bayescal.methods import get_method, method_names

FIXED = [name for name in method_names() if not get_method(name).prompts_depend_on_images]


class Everything(nn.Module):
    """All methods side by side, so that one export is enough."""

    def __init__(self, beliefs: list[MethodBelief]):
        super().__init__()
        self.beliefs = nn.ModuleList(beliefs)

    def forward(self, features: Tensor) -> list[Tensor]:
        return [value for belief in self.beliefs for value in belief(features)[:2]]


def test_every_method_whose_prompts_are_fixed(tmp_path):
    assert len(FIXED) > 25
    words = tiny.tiny_word_vectors(tmp_path)
    learned = {name: predictor(name, word_vectors=words) for name in FIXED}
    for name, one in learned.items():
        one.temperature = 1.0 + 0.1 * (len(name) % 3)
    outputs = [f"{name}/{what}" for name in FIXED for what in ("probabilities", "information")]
    module = Everything([MethodBelief(one) for one in learned.values()])
    graph = traced(module, torch.zeros(2, 12), "features", outputs)
    session = InferenceSession(checked(graph), providers=["CPUExecutionProvider"])
    features = tiny.tiny_problem().features[:7]  # another number than the example's
    found = dict(zip(outputs, session.run(outputs, {"features": features.numpy()}), strict=True))
    for name, one in learned.items():
        true = one.posterior(features)
        assert np.abs(found[f"{name}/probabilities"] - true.probs.numpy()).max() < 1e-5, name
        assert np.abs(found[f"{name}/information"] - true.mutual_information.numpy()).max() < 1e-4, name
    posterior = [name for name in FIXED if get_method(name).has_posterior]
    assert all(found[f"{name}/information"].max() > 1e-4 for name in posterior)


@pytest.mark.parametrize("name", ["cocoop", "dplclip"])
def test_prompts_that_depend_on_images_are_refused(name):
    title = get_method(name).title
    with pytest.raises(BayescalError, match=rf"{title} cannot be exported: its text features depend on the images"):
        check_exportable(predictor(name))


@pytest.fixture(scope="module")
def mixed():
    return stacked()


@pytest.fixture(scope="module", params=["float32", "float16"])
def folder(request, mixed, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / request.param
    sample = Sample(drawn(20, seed=3), np.arange(20) % 3)
    measured = export_model(mixed, path, request.param, sample=sample)
    assert measured is not None
    assert measured.images == 20
    return path


def test_a_mixture_with_everything_around_it(mixed, folder):
    model, pixels = ExportedModel(folder), drawn(40)
    found, true = model.predict_pixels(pixels), mixed.details(features_of(mixed.backbone, pixels))
    close = 1e-4 if folder.name == "float32" else 0.02
    for name in (field.name for field in fields(Prediction)):
        one, other = getattr(found, name), getattr(true, name)
        if one.dtype.kind == "f":
            assert np.abs(one - other).max() < close, name
        elif folder.name == "float32":
            assert (one == other).all(), name
    assert true.disagreement.max() > 1e-3
    assert true.mutual_information.max() > 1e-3
    assert len(set(true.unsure.tolist())) == len(set(true.environment.tolist())) == 2


def test_labels_say_what_the_model_says(mixed, folder):
    model = ExportedModel(folder)
    assert (model.classes, model.environments) == (mixed.classes, mixed.environments)
    assert (model.threshold, model.labels["temperature"]) == (mixed.threshold, mixed.temperature)
    assert model.unfamiliar_below == mixed.familiarity.threshold
    assert model.preprocess == mixed.backbone.preprocess
    assert model.labels["precision"] == folder.name
    assert model.labels["checked"]["images"] == 20


def test_one_image_and_none(folder):
    model = ExportedModel(folder)
    assert model.predict_pixels(drawn(1)).probabilities.shape == (1, 3)
    assert model.predict_pixels(drawn(0)).probabilities.shape == (0, 3)


def test_pixels_of_another_kind_are_refused(folder):
    with pytest.raises(ValueError, match="uint8"):
        ExportedModel(folder).predict_pixels(drawn(2).astype(np.float32))


class OneSize(nn.Module):
    """What it gives depends on the number of images in a way that a graph cannot have."""

    def forward(self, features: Tensor) -> Tensor:
        return features.reshape(len(features), 3, 4).sum(2)


def test_what_holds_for_one_number_of_images_alone_is_refused():
    with pytest.raises(BayescalError, match="cannot be written as an ONNX graph: Constraints violated"):
        traced(OneSize(), torch.zeros(2, 12), "features", ["sums"])
