"""Whether an exported graph answers as the model does, on images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayescal.data import read_manifest
from bayescal.data.transforms import Transform, normalised
from bayescal.errors import BayescalError, DataError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.features.decode_process import fill
from bayescal.util.progress import progress_bar

CALIBRATION = 64  # images that set the scales of int8, and are not checked on
BATCH = 16
POINTS = 0.5  # of accuracy that a precision may cost
CLOSE = 1e-3  # a difference of probabilities in float32 that rounding does not explain


@dataclass(frozen=True)
class Sample:
    """Images as pixels, (N, size, size, 3) uint8, and the numbers of their classes (N,)."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def calibration(self) -> tuple["Sample", "Sample"]:
        """Some images spread over all, and the others."""
        chosen = np.zeros(len(self), bool)
        chosen[np.linspace(0, len(self) - 1, min(CALIBRATION, len(self) // 2)).astype(int)] = True
        return Sample(self.pixels[chosen], self.labels[chosen]), Sample(self.pixels[~chosen], self.labels[~chosen])


@dataclass(frozen=True)
class Checked:
    """How far the graph's answers are from the model's."""

    images: int
    largest_difference: float  # of a probability
    same_class: float  # share of the images
    accuracy: float  # of the model
    accuracy_exported: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return (
            f"Checked on {self.images:,} images: the class is the same in {self.same_class:.1%}, probabilities differ "
            f"by {self.largest_difference:.1g} at most; accuracy {self.accuracy:.1%}, exported "
            f"{self.accuracy_exported:.1%}."
        )


class TooCostly(BayescalError):
    """A precision that answers fewer images right than it may; `checked` says how many."""

    def __init__(self, message: str, checked: Checked):
        super().__init__(message)
        self.checked = checked


def read_sample(predictor: BasePredictor, folder: Path, progress: bool = False) -> Sample:
    """The labelled images of a folder (or manifest) that can be read."""
    manifest = read_manifest(folder)
    labels = predictor.class_ids(manifest.classes, manifest.class_ids).numpy()
    transform, side = Transform(predictor.backbone.preprocess), predictor.backbone.preprocess.size
    pixels = np.empty((len(manifest), side, side, 3), np.uint8)
    rows: list[int] = []
    with progress_bar("Reading images" if progress else None, len(manifest)) as bar:
        for row, path in enumerate(manifest.paths):
            at = len(rows)
            if not fill(pixels[at : at + 1], [(path, "", (0,))], transform):
                rows.append(row)
            bar.advance()
    if not rows:
        raise DataError(f"{folder}: none of the {len(manifest)} images can be read")
    return Sample(pixels[: len(rows)], labels[rows])


def compare(predictor: BasePredictor, graph: bytes, sample: Sample, progress: bool = False) -> Checked:
    """The answers of the graph beside those of the model."""
    from onnxruntime import InferenceSession

    session = InferenceSession(graph, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = []
    true: list[np.ndarray] = []
    with progress_bar("Checking" if progress else None, len(sample)) as bar:
        for at in range(0, len(sample), BATCH):
            pixels = sample.pixels[at : at + BATCH]
            found.append(np.asarray(session.run(["probabilities"], {"images": pixels})[0]))
            true.append(_probabilities(predictor, pixels))
            bar.advance(len(pixels))
    exported, model = np.concatenate(found), np.concatenate(true)
    return Checked(
        images=len(sample),
        largest_difference=float(np.abs(exported - model).max()),
        same_class=float((exported.argmax(1) == model.argmax(1)).mean()),
        accuracy=float((model.argmax(1) == sample.labels).mean()),
        accuracy_exported=float((exported.argmax(1) == sample.labels).mean()),
    )


def checking(
    predictor: BasePredictor, sample: Sample, precision: str, progress: bool = False
) -> Callable[[bytes], Checked]:
    """`compare`, and an error where the graph is not as good as its precision has to be."""

    def check(graph: bytes) -> Checked:
        checked = compare(predictor, graph, sample, progress)
        lost = 100 * (checked.accuracy - checked.accuracy_exported)
        if lost > POINTS:
            raise TooCostly(
                f"in {precision} the model answers {lost:.1f} points fewer of {checked.images:,} images right "
                f"({checked.accuracy:.1%} → {checked.accuracy_exported:.1%}), and at most {POINTS} are allowed: "
                f"nothing was written. Use --precision {'float16' if precision == 'int8' else 'float32'}",
                checked,
            )
        if precision == "float32" and checked.largest_difference > CLOSE:
            raise BayescalError(
                f"the graph's probabilities differ from the model's by up to {checked.largest_difference:.2g}: nothing "
                "was written. Please report it"
            )
        return checked

    return check


def _probabilities(predictor: BasePredictor, pixels: np.ndarray) -> np.ndarray:
    backbone = predictor.backbone
    inputs = torch.from_numpy(normalised(pixels, backbone.preprocess)).permute(0, 3, 1, 2)
    return predictor.details(backbone.encode_images(inputs)).probabilities
