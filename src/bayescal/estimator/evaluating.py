"""Measuring a trained classifier on labelled images: the numbers, and what it said of every image."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from bayescal.data import ImageSource
from bayescal.errors import BayescalWarning, DataError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.prediction import Prediction
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation.scoring import Evaluation
from bayescal.features import FeatureBank
from bayescal.features.extract import name_of
from bayescal.features.feature_rows import Failure

NEIGHBOURS = 3  # training images that are shown beside an image


@dataclass(frozen=True, eq=False)
class AnsweredImages:
    """What a classifier said of n labelled images, in the order given."""

    sources: tuple[ImageSource, ...]
    names: tuple[str, ...]  # paths, or what stands for images that have none
    labels: np.ndarray  # (n,) number of the true class among the model's
    said: np.ndarray  # (n,) number of the class that it answered
    environments: tuple[str, ...]  # (n,)
    prediction: Prediction
    learned_from: np.ndarray  # (n,) bool: the model was made from this image, by content
    neighbours: np.ndarray  # (n, k) numbers of the most similar training images, best first; k = 0: it keeps none
    training: TrainingImages | None  # what the neighbours are numbers of
    training_environments: tuple[str, ...]  # names that its ids point to

    @property
    def right(self) -> np.ndarray:
        return self.said == self.labels

    @property
    def mistakes(self) -> np.ndarray:
        """Numbers of the images answered wrongly, the most confident first."""
        return self._sorted(~self.right, -self.prediction.confidence)

    @property
    def least_sure(self) -> np.ndarray:
        """Numbers of the images answered rightly, the least confident first."""
        return self._sorted(self.right, self.prediction.confidence)

    def _sorted(self, chosen: np.ndarray, by: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(by[rows], kind="stable")]


@dataclass(frozen=True)
class Evaluated(Evaluation):
    """How good a classifier is, and what it said of every image.

    Attributes
    ----------
    images : every image that could be read, with its answer.
    unreadable : the others, which are not in the numbers.
    others : the numbers without images that the model was made from; None where there are none such, or no others.
    """

    images: AnsweredImages = field(repr=False)
    unreadable: tuple[Failure, ...] = ()
    others: Evaluation | None = None

    def mistakes(self) -> list[dict[str, Any]]:
        """The images answered wrongly, the most confident first: path, class, answer, confidence, environment."""
        return [self._row(i) for i in self.images.mistakes.tolist()]

    def _row(self, i: int) -> dict[str, Any]:
        answered, said = self.images, self.images.prediction
        return {
            "image": answered.names[i],
            "class": self.class_names[answered.labels[i]],
            "said": self.class_names[answered.said[i]],
            "confidence": float(said.confidence[i]),
            "environment": answered.environments[i],
            "unsure": bool(said.unsure[i]),
            "unfamiliar": bool(said.unfamiliar[i]),
            "learned_from": bool(answered.learned_from[i]),
        }

    def to_json(self) -> dict[str, Any]:
        """The flat record, with the mistakes and what of it the model was made from."""
        learned = int(self.images.learned_from.sum())
        return {
            **super().to_json(),
            "learned_from": learned,
            "without_learned_from": None if self.others is None else asdict(self.others.scores),
            "mistakes": self.mistakes(),
            "unreadable": [{"image": failure.name, "reason": failure.reason} for failure in self.unreadable],
        }


def evaluate_images(
    predictor: BasePredictor, bank: FeatureBank, images: LabelledImages, progress: bool = False
) -> Evaluated:
    """How good a model is on images; those that cannot be read are left out with a warning, unless none can.

    Warns where the model was made from images among them.
    """
    labels = predictor.class_ids(images.classes.tolist(), images.class_ids)
    contents = images.contents or bank.contents(images.sources, progress=progress)
    encoded = bank.encode(images.sources, progress=progress, contents=contents)
    contents.fetched.clear()
    failed = {failure.index for failure in encoded.failures}
    kept = np.array([i for i in range(len(images)) if i not in failed], dtype=np.int64)
    if failed:
        if not len(kept):
            raise DataError(encoded.describe_failures("could not be read"))
        warnings.warn(encoded.describe_failures(), BayescalWarning, stacklevel=2)
    features, groups = encoded.features[kept], torch.from_numpy(images.environment_ids[kept])
    prediction = predictor.details(features, groups)
    names = [str(label) for label in images.environments]
    training = predictor.training
    answered = AnsweredImages(
        sources=tuple(images.sources[i] for i in kept),
        names=tuple(name_of(images.sources[i], int(i)) for i in kept),
        labels=labels[kept].numpy(),
        said=prediction.probabilities.argmax(1),
        environments=tuple(names[i] for i in images.environment_ids[kept]),
        prediction=prediction,
        learned_from=np.zeros(len(kept), bool) if training is None else training.contains(contents.digests[kept]),
        neighbours=np.empty((len(kept), 0), np.int64)
        if training is None
        else training.nearest(features, NEIGHBOURS)[0].numpy(),
        training=training,
        training_environments=tuple(map(str, predictor.environments)),
    )
    evaluation, others = _scores(predictor, answered, labels[kept], groups, names)
    own = {each.name: getattr(evaluation, each.name) for each in fields(Evaluation)}
    return Evaluated(**own, images=answered, unreadable=encoded.failures, others=others)


def _scores(
    predictor: BasePredictor, answered: AnsweredImages, labels: torch.Tensor, groups: torch.Tensor, names: Sequence[str]
) -> tuple[Evaluation, Evaluation | None]:
    """Of all images, and of those that the model was not made from, with a warning where these are fewer."""
    probs, new = torch.from_numpy(answered.prediction.probabilities), torch.from_numpy(~answered.learned_from)
    evaluation = predictor.measure(probs, labels, groups, names)
    learned = int(answered.learned_from.sum())
    if not learned:
        return evaluation, None
    others = predictor.measure(probs[new], labels[new], groups[new], names) if bool(new.any()) else None
    without = "there are no others" if others is None or others.scores.accuracy is None else (
        f"without them, accuracy is {100 * others.scores.accuracy:.1f} % of {int(new.sum()):,}"
    )  # fmt: skip
    warnings.warn(
        f"the model was made from {learned:,} of these {len(new):,} images (known by content), which says little of "
        f"others; {without}",
        BayescalWarning,
        stacklevel=4,
    )
    return evaluation, others
