"""What a classifier says about images."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

UNSURE, UNFAMILIAR = "unsure", "unfamiliar"


@dataclass(frozen=True)
class Prediction:
    """What the classifier says about each of N images.

    The entropy of an answer has three parts: how far the members of a stacked model disagree, what each of them does
    not know about its parameters, and the rest, which more images like those seen would not take away.
    """

    labels: np.ndarray  # (N,): the most probable class
    probabilities: np.ndarray  # (N, C)
    confidence: np.ndarray  # (N,): probability of that class
    unsure: np.ndarray  # (N,) bool: confidence below the threshold
    entropy: np.ndarray  # (N,): total uncertainty in nats
    mutual_information: np.ndarray  # (N,): the part that comes from not knowing the parameters; 0 without a posterior
    disagreement: np.ndarray  # (N,): the part that comes from members that answer differently; 0 for a single method
    environment: np.ndarray  # (N,): the training environment whose images look most like this one
    # (N,): how much the image is like those learned from, in standard deviations; 0 is usual, NaN: not known.
    familiarity: np.ndarray
    unfamiliar: np.ndarray  # (N,) bool: so unlike them that the answer, however confident, means little

    @classmethod
    def joined(cls, parts: "Sequence[Prediction]") -> "Prediction":
        """What was said about images part by part, as one."""
        return cls(**{own.name: np.concatenate([getattr(part, own.name) for part in parts]) for own in fields(cls)})

    def selective(self) -> np.ndarray:
        """The most probable class of each image; "unfamiliar" where the image is unlike any that was learned from, else
        "unsure" where the confidence is below the threshold."""
        answers = np.where(self.unsure, UNSURE, self.labels.astype(object))
        return np.where(self.unfamiliar, UNFAMILIAR, answers)
