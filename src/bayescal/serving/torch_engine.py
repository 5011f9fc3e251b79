"""A model of `bayescal fit`, computed by torch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bayescal.data.transforms import cropped, normalised
from bayescal.end_to_end import load_model
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.prediction import Prediction
from bayescal.util.jsonable import finite, jsonable


class TorchEngine:
    """Answers of a `BasePredictor`; each forward pass uses `threads` cores."""

    name = "torch"

    def __init__(self, predictor: BasePredictor, threads: int = 1):
        self.predictor, self.threads = predictor, threads

    @classmethod
    def load(cls, path: str | Path, backbone: str | None, device: str, threads: int) -> "TorchEngine":
        return cls(load_model(path, backbone, device), threads)

    @property
    def classes(self) -> Sequence[Any]:
        return self.predictor.classes

    @property
    def environments(self) -> Sequence[Any]:
        return self.predictor.environments

    @property
    def width(self) -> int:
        return self.predictor.backbone.dim

    @property
    def answers_depend_on_batch(self) -> bool:
        return self.predictor.answers_depend_on_batch

    def about(self) -> dict[str, Any]:
        p = self.predictor
        return jsonable(
            {
                "method": p.method_name,
                "backbone": {"name": p.backbone.label or p.backbone.name, "fingerprint": p.backbone.fingerprint},
                "unsure_below": finite(p.threshold),
                "unfamiliar_below": None if p.familiarity is None else finite(p.familiarity.threshold),
                "expected": None if p.expected is None else asdict(p.expected),
            }
        )

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(cropped(image, self.predictor.backbone.preprocess))

    def features(self, pixels: np.ndarray) -> torch.Tensor:
        """Image features (N, D) of (N, size, size, 3) uint8."""
        self._use_threads()
        backbone = self.predictor.backbone
        prepared = torch.from_numpy(normalised(pixels, backbone.preprocess)).permute(0, 3, 1, 2)
        return backbone.encode_images(prepared)

    def predict_pixels(self, pixels: np.ndarray) -> Prediction:
        return self.predictor.details(self.features(pixels))

    def predict_features(self, features: np.ndarray) -> Prediction:
        self._use_threads()
        return self.predictor.details(torch.from_numpy(features))

    def _use_threads(self) -> None:
        # The number belongs to the calling thread in OpenMP; setting it anew costs microseconds.
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
