"""What a model says about images, one answer per image, a few images at a time."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bayescal.estimator.answers import Answer, answers_of
from bayescal.features.remote_hashes import is_remote

if TYPE_CHECKING:
    from torch import Tensor

    from bayescal.data import ImageSource
    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.estimator.prediction import Prediction
    from bayescal.features import Encoded, FeatureBank

FIRST, LARGEST = 16, 1024  # images answered together: few at first, so that something is seen soon
LARGEST_REMOTE = 128  # images behind URLs are in memory from when they are fetched until they are encoded


def answer_in_parts(
    predictor: "BasePredictor", bank: "FeatureBank", images: "Sequence[ImageSource]", names: Sequence[str]
) -> Iterator[list[Answer]]:
    """Answers in the order of the images; memory does not grow with their number."""
    at, size = 0, len(images) if predictor.answers_depend_on_batch else FIRST
    largest = LARGEST_REMOTE if any(map(is_remote, images)) else LARGEST
    while at < len(images):
        part = images[at : at + size]
        yield answer_all(predictor, names[at : at + size], bank.encode(part))
        at, size = at + len(part), min(2 * size, largest)


def details_in_parts(predictor: "BasePredictor", features: "Tensor") -> "Prediction":
    """What a model says about images (N, D), in the memory that a part of them takes."""
    from bayescal.estimator.prediction import Prediction

    parts = (features,) if predictor.answers_depend_on_batch else features.split(LARGEST)
    return Prediction.joined([predictor.details(part) for part in parts])


def answer_all(predictor: "BasePredictor", images: Sequence[str], encoded: "Encoded") -> list[Answer]:
    """Answers in the order of the images."""
    reasons = {failure.index: failure.reason for failure in encoded.failures}
    read = [i for i in range(len(images)) if i not in reasons]
    answers = [Answer(image, reason=reasons.get(i, "")) for i, image in enumerate(images)]
    if read:
        details = predictor.details(encoded.features[read])
        for i, answer in zip(read, answers_of([images[i] for i in read], details), strict=True):
            answers[i] = answer
    return answers
