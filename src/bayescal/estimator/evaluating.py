"""Measuring a trained classifier on labelled images."""

import warnings
from typing import NamedTuple

import numpy as np
import torch

from bayescal.errors import BayescalWarning, DataError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.evaluation.scoring import Evaluation
from bayescal.features import FeatureBank
from bayescal.features.feature_rows import Failure


class Evaluated(NamedTuple):
    """The numbers, and the images that could not be read and are not in them."""

    evaluation: Evaluation
    unreadable: tuple[Failure, ...]


def evaluate_images(
    predictor: BasePredictor, bank: FeatureBank, images: LabelledImages, progress: bool = False
) -> Evaluated:
    """How good a model is on images; those that cannot be read are left out with a warning, unless none can."""
    labels = predictor.class_ids(images.classes.tolist(), images.class_ids)
    encoded = bank.encode(images.sources, progress=progress, contents=images.contents)
    failed = {failure.index for failure in encoded.failures}
    kept = np.array([i for i in range(len(images)) if i not in failed], dtype=np.int64)
    if failed:
        if not len(kept):
            raise DataError(encoded.describe_failures("could not be read"))
        warnings.warn(encoded.describe_failures(), BayescalWarning, stacklevel=2)
    evaluation = predictor.evaluate(
        encoded.features[kept],
        labels[kept],
        torch.from_numpy(images.environment_ids[kept]),
        [str(label) for label in images.environments],
    )
    return Evaluated(evaluation, encoded.failures)
