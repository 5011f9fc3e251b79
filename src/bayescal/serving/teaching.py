"""Teaching: the model the server was started with learns anew, from what it keeps and from the user's labels."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayescal.errors import DataError
from bayescal.estimator.adding import add_images
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.serving.labels import AddedImage

MODELS = "models"  # the folder of taught models, by number, beside the images


@dataclass(frozen=True)
class Taught:
    """A new model, and what to tell of it."""

    predictor: BasePredictor
    about: dict[str, Any]


def teach(
    base: BasePredictor, bank: FeatureBank, images: Sequence[AddedImage], files: Sequence[Path], checkpoints: Path
) -> Taught:
    """Learn from all labelled images, whatever was taught before: a label that has changed since counts as it is now.

    Before and after are compared on the new images, each answered by models that did not learn from it.
    """
    labels = [image.label for image in images if image.label is not None]
    if len(labels) != len(images):
        raise DataError("an image without a label cannot be learned from")
    table = LabelledImages.from_lists(
        [str(file) for file in files],
        [label.class_name for label in labels],
        [label.environment for label in labels],
    )
    table = replace(table, contents=ContentIndex.known(digests_of([image.id for image in images]), {}))
    addition = add_images(base, bank, table, checkpoints=checkpoints, verbose=True)
    told = {f.name: getattr(addition, f.name) for f in fields(addition) if f.name not in ("predictor", "unreadable")}
    return Taught(addition.predictor, told)


def digests_of(ids: Sequence[str]) -> np.ndarray:
    """Contents (n, 32) from SHA-256 in hexadecimal digits."""
    return np.frombuffer(bytes.fromhex("".join(ids)), dtype=np.uint8).reshape(-1, 32)
