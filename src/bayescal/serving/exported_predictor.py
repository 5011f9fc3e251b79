"""An exported model as the page works with it: it looks, keeps labels and says what to label next; it cannot learn."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones.base import ImageEncoder
from bayescal.data.preprocess import Preprocess
from bayescal.errors import ArtifactError
from bayescal.estimator.base_predictor import BasePredictor, Posterior
from bayescal.estimator.prediction import Prediction
from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.export.reading import LABELS, ExportedModel


class ExportedEncoder(ImageEncoder):
    """The first part of its graph, which turns images into features."""

    def __init__(self, model: ExportedModel):
        self.model = model
        if model.width is None:
            raise ArtifactError(f"{model.path} gives no features: an older version wrote it. Export it again")
        self._dim = model.width
        # Its features differ in their last digits from those of the backbone it was made from, and more in int8.
        graph = hashlib.sha256((model.path / LABELS).read_bytes()).hexdigest()[:12]
        self._fingerprint = f"{model.labels['fingerprint']}-{graph}"

    @property
    def name(self) -> str:
        return str(self.model.labels["backbone"])

    @property
    def label(self) -> str:
        return self.name

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def preprocess(self) -> Preprocess:
        return self.model.preprocess

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Features (N, D) of normalised pixels (N, 3, size, size), which the graph takes as bytes."""
        how = self.preprocess
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (how.mean, how.std))
        whole = ((pixels * deviation + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        return torch.from_numpy(self.model.features(whole.permute(0, 2, 3, 1).contiguous().numpy()))


class ExportedPredictor(BasePredictor):
    """What its graph says of features."""

    def __init__(self, model: ExportedModel):
        self.model, labels = model, model.labels
        backbone = ExportedEncoder(model)
        expected = labels["expected"]
        super().__init__(
            backbone=backbone,
            classes=model.classes,
            class_words=tuple(labels["class_words"]),
            environments=model.environments,
            prototypes=torch.zeros(len(model.environments), backbone.dim),  # are in the graph, and not to be had
            threshold=model.threshold,
            temperature=labels["temperature"],
            expected=None if expected is None else ExpectedAccuracy(**expected),
            record={"checked": labels.get("measured")},
        )

    @property
    def method_name(self) -> str:
        return self.model.labels["method"]

    def try_out(self, path: str | Path) -> None:
        """Nothing: its file was checked when it was opened."""

    def details(self, features: Tensor, groups: Tensor | None = None) -> Prediction:
        return self.model.predict_features(features.numpy())

    def posterior(self, features: Tensor, groups: Tensor | None = None) -> Posterior:
        said = self.details(features)
        values = (said.probabilities, said.mutual_information, said.disagreement)
        return Posterior(*(torch.from_numpy(np.ascontiguousarray(value)) for value in values))
