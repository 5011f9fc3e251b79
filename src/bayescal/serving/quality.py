"""How good the model is: what was measured when it was made, and how it does on the images a user has labelled."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.estimator.base_predictor import BasePredictor
from bayescal.serving.labels import Label
from bayescal.util.jsonable import jsonable


def report(predictor: BasePredictor, features: Tensor, labels: Sequence[Label | None], taught: int) -> dict[str, Any]:
    """For the page; `features` (n, D) and `labels` (n,) are of images that the model has not learned from.

    `taught` images were labelled here, too, and it has.
    """
    expected = predictor.expected
    return jsonable(
        {
            "expected": None if expected is None else {**asdict(expected), "sentence": expected.sentence()},
            "checked": predictor.record.get("checked"),
            "yours": _measured(predictor, features, [label for label in labels if label is not None]),
            "taught": taught,
            "train_images": predictor.record.get("train_images"),
            "temperature": predictor.temperature,
            "unsure_below": predictor.threshold,
        }
    )


def _measured(predictor: BasePredictor, features: Tensor, labels: Sequence[Label]) -> dict[str, Any] | None:
    """Images of classes that the model does not know yet tell nothing about it."""
    known = {str(name) for name in predictor.classes}
    rows = [i for i, label in enumerate(labels) if label.class_name in known]
    if not rows:
        return None
    features, labels = features[rows], [labels[i] for i in rows]
    names, ids = np.unique([label.class_name for label in labels], return_inverse=True)
    environments, groups = np.unique([label.environment for label in labels], return_inverse=True)
    targets = predictor.class_ids(names.tolist(), ids)
    return predictor.evaluate(features, targets, torch.from_numpy(groups), [str(name) for name in environments]).brief()
