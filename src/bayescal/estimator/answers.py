"""What a model says about one image, as the command line and the server show it. Needs numpy alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bayescal.estimator.prediction import Prediction
from bayescal.util.jsonable import finite

FIELDS = (
    "image", "status", "class", "unsure", "confidence", "environment", "entropy", "mutual_information", "disagreement",
    "familiarity", "unfamiliar",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The answer for one image, or the reason why there is none."""

    image: str
    reason: str = ""  # why the image could not be read
    label: Any = None
    unsure: bool = False
    confidence: float = math.nan
    environment: Any = None
    entropy: float = math.nan
    mutual_information: float = math.nan
    disagreement: float = math.nan
    familiarity: float | None = None  # None: the model knows nothing of it
    unfamiliar: bool = False
    probabilities: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.reason

    def fields(self) -> dict[str, Any]:
        """The columns of FIELDS; None where an unreadable image has no value."""
        if not self.ok:
            return dict.fromkeys(FIELDS) | {"image": self.image, "status": "unreadable"}
        values = (
            self.image,
            "ok",
            self.label,
            self.unsure,
            self.confidence,
            self.environment,
            self.entropy,
            self.mutual_information,
            self.disagreement,
            self.familiarity,
            self.unfamiliar,
        )
        return dict(zip(FIELDS, values, strict=True))

    def entry(self, classes: Sequence[str]) -> dict[str, Any]:
        """Everything that is known, as JSON has it: the fields, and the probability of every class or the reason."""
        if self.ok:
            return self.fields() | {"probabilities": dict(zip(classes, self.probabilities, strict=True))}
        return self.fields() | {"reason": self.reason}


def answers_of(images: Sequence[str], prediction: Prediction) -> list[Answer]:
    """One answer per image, by name: N images and what is said of them."""
    return [
        Answer(
            image=image,
            label=prediction.labels[row].item(),
            unsure=bool(prediction.unsure[row]),
            confidence=float(prediction.confidence[row]),
            environment=prediction.environment[row].item(),
            entropy=float(prediction.entropy[row]),
            mutual_information=float(prediction.mutual_information[row]),
            disagreement=float(prediction.disagreement[row]),
            familiarity=finite(prediction.familiarity[row]),
            unfamiliar=bool(prediction.unfamiliar[row]),
            probabilities=tuple(prediction.probabilities[row].tolist()),
        )
        for row, image in enumerate(images)
    ]
