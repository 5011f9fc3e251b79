"""What every trained classifier can do, whatever it learned: answer with its uncertainty, be measured, be kept.

`Predictor` and `StackedPredictor` (`predictor.py`) say what is believed of an image; the rest is here.
"""

import abc
import logging
import math
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal import __version__
from bayescal.backbones.base import ImageEncoder
from bayescal.errors import ArtifactError, BayescalError, BayescalWarning, DataError
from bayescal.estimator.artifact import read_artifact, write_artifact
from bayescal.estimator.checking import check_config, check_shared, check_width
from bayescal.estimator.prediction import Prediction
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation import calibration, metrics
from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.evaluation.familiarity import Familiarity
from bayescal.evaluation.scoring import Evaluation, evaluate
from bayescal.util.jsonable import finite
from bayescal.util.typed import read

log = logging.getLogger(__name__)

FEW_SHOT = "few-shot"  # the kind of models that say none
FAMILIARITY = ("images", "texts", "mean", "deviation")  # the tensors of `Familiarity`
SINCE = ("noise", "words")  # those that older models have not

Restore = Callable[[dict[str, Tensor], dict[str, Any], str | Path, str | None, str], "BasePredictor"]
_kinds: dict[str, Restore] = {}


def register_kind(kind: str, restore: Restore) -> None:
    """Teach `load` to read models whose config says this `kind`: `restore(tensors, config, path, backbone, device)`."""
    _kinds[kind] = restore


class Posterior(NamedTuple):
    """What is believed of N images, and the parts of its uncertainty that come from what was not learned."""

    probs: Tensor  # (N, C), at the model's temperature
    mutual_information: Tensor  # (N,): before the temperature, which changes the mean and not the samples
    disagreement: Tensor  # (N,), as well


@dataclass(kw_only=True)
class BasePredictor(abc.ABC):
    """What training learned, on features of its backbone."""

    backbone: ImageEncoder
    classes: list[Any]  # labels, as the user gave them
    class_words: tuple[str, ...]
    environments: list[Any]
    prototypes: Tensor  # (E, D): mean direction of each training environment's images
    samples: int = 20
    threshold: float = 0.0
    temperature: float = 1.0
    familiarity: Familiarity | None = None
    expected: ExpectedAccuracy | None = None
    training: TrainingImages | None = None  # None: a model that keeps none of its images, as before version 0.2
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.backbone.device
        self.prototypes = self.prototypes.to(device)
        self.familiarity = None if self.familiarity is None else self.familiarity.to(device)

    @property
    @abc.abstractmethod
    def method_name(self) -> str:
        """What `--method` says to learn such a model."""

    @property
    def answers_depend_on_batch(self) -> bool:
        """Whether the answer to an image depends on the images given with it (`Method.answers_depend_on_batch`)."""
        return False

    @classmethod
    def load(cls, path: str | Path, backbone: str | None = None, device: str = "auto") -> "BasePredictor":
        """Read a saved model of any kind; `backbone` says where the weights are now, if they have moved."""
        tensors, config = read_artifact(path)
        kind = config.get("kind", FEW_SHOT)
        if not isinstance(kind, str) or kind not in _kinds:
            raise ArtifactError(
                f"{path} is a model of the kind {kind!r}, and only {', '.join(_kinds)} can be read here; models that "
                "were trained end to end can after `import bayescal.end_to_end`"
            )
        check_config(config, path)
        check_shared(tensors, config, path)
        predictor = _kinds[kind](tensors, config, path, backbone, device)
        check_width(predictor.prototypes, predictor.backbone.dim, path)
        predictor.try_out(path)
        log.info("loaded %s: %s on %s", path, predictor.method_name, predictor.backbone.name)
        return predictor

    @abc.abstractmethod
    def try_out(self, path: str | Path) -> None:
        """Refuse what was read from `path` if it does not answer: at once, or before the first answer."""

    # ---- answers --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def posterior(self, features: Tensor, groups: Tensor | None = None) -> Posterior:
        """What is believed of images (N, D); `groups` as in `details`."""

    def details(self, features: Tensor, groups: Tensor | None = None) -> Prediction:
        """Everything that can be said about images, from their features (N, D).

        `groups` (N,) numbers the environment each image comes from, if known; only methods that read the environment
        off a batch of images (`answers_depend_on_batch`) use it.
        """
        features = features.to(self.backbone.device)
        probs, information, disagreement = self.posterior(features, groups)
        if wrong := int((~probs.isfinite()).any(1).sum()):
            raise BayescalError(
                f"{wrong} of {len(probs)} answers are no numbers: expected images and a model whose numbers can be "
                "computed with. Fit the model again, or look for features that are not finite"
            )
        familiar = probs.new_full((len(probs),), math.nan) if self.familiarity is None else self.familiarity(features)
        lowest = -math.inf if self.familiarity is None else self.familiarity.threshold
        sure, answer = probs.max(1)
        nearest = (F.normalize(features, dim=-1) @ self.prototypes.T).argmax(1)
        return Prediction(
            labels=np.array(self.classes)[answer.cpu().numpy()],
            probabilities=probs.cpu().numpy(),
            confidence=sure.cpu().numpy(),
            unsure=(sure < self.threshold).cpu().numpy(),
            entropy=metrics.predictive_entropy(probs).cpu().numpy(),
            mutual_information=information.cpu().numpy(),
            disagreement=disagreement.cpu().numpy(),
            environment=np.array(self.environments)[nearest.cpu().numpy()],
            familiarity=familiar.cpu().numpy(),
            unfamiliar=(familiar < lowest).cpu().numpy(),
        )

    def calibrate(
        self, features: Tensor, labels: Tensor, groups: Tensor | None = None, *, temperature: bool = False
    ) -> float | None:
        """Set the "unsure" threshold, and first the temperature if wanted, on validation images: (N, D), labels (N,).

        Returns the accuracy on them; None, with a warning, where there are none.
        """
        if not len(labels):
            _warn("no validation images: no answer will be called unsure. Give more images per class")
            return None
        labels = labels.to(self.backbone.device)
        if temperature:
            probs = self.posterior(features, groups).probs
            if bool((probs.argmax(1) == labels).all()):
                # The likelihood then grows with confidence alone: its best temperature, zero, calibrates nothing.
                _warn(
                    "not calibrated: every validation image was answered correctly, so nothing tells how often the "
                    "classifier is wrong. Give more validation images"
                )
            else:
                self.temperature = calibration.fit_temperature(probs, labels)
        probs = self.posterior(features, groups).probs[None]
        self.threshold = float(calibration.unsure_threshold(probs, labels))
        return float(metrics.accuracy(probs, labels))

    def evaluate(
        self, features: Tensor, labels: Tensor, environment_ids: Tensor, environments: Sequence[str]
    ) -> Evaluation:
        """How good the answers are on labelled images: features (N, D), labels (see `class_ids`) and ids (N,).

        `environments` are the names that the ids point to; those that the model learned from are marked as seen.
        """
        probs = self.posterior(features, environment_ids).probs.cpu()
        return self.measure(probs, labels, environment_ids, environments)

    def measure(
        self, probs: Tensor, labels: Tensor, environment_ids: Tensor, environments: Sequence[str]
    ) -> Evaluation:
        """How good its answers (N, C) are; the rest as in `evaluate`."""
        return evaluate(
            probs,
            labels,
            environment_ids,
            threshold=self.threshold,
            classes=[str(label) for label in self.classes],
            environments=environments,
            seen={str(name) for name in self.environments},
        )

    def class_ids(self, names: Sequence[Any], ids: np.ndarray) -> Tensor:
        """This model's number of each image's class (N,), where `ids` (N,) point into another table of names."""
        number = {str(label): index for index, label in enumerate(self.classes)}
        present = [str(names[i]) for i in np.unique(ids)]
        if unknown := [name for name in present if name not in number]:
            raise DataError(
                f"the model does not know {len(unknown)} of the {len(present)} classes in the data: "
                f"{', '.join(unknown[:10])}{' …' if len(unknown) > 10 else ''}. "
                f"It knows: {', '.join(list(number)[:20])}{' …' if len(number) > 20 else ''}"
            )
        return torch.tensor([number.get(str(name), -1) for name in names])[torch.from_numpy(np.array(ids))]

    # ---- keeping --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the folder that `load` reads: model.safetensors and config.json."""
        write_artifact(path, self.tensors(), self.description(), overwrite)
        log.info("saved %s as %s", self.method_name, path)

    def tensors(self) -> dict[str, Tensor]:
        """What model.safetensors holds."""
        tensors = {"environment_prototypes": self.prototypes}
        if (known := self.familiarity) is not None:
            tensors |= {f"familiarity/{name}": getattr(known, name) for name in FAMILIARITY}
            tensors |= {f"familiarity/{name}": own for name in SINCE if (own := getattr(known, name)) is not None}
        return tensors | ({} if self.training is None else self.training.tensors())

    def description(self) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "classes": self.classes,
            "class_words": list(self.class_words),
            "environments": self.environments,
            "backbone": {
                "name": self.backbone.name,
                "label": self.backbone.label,
                "fingerprint": self.backbone.fingerprint,
            },
            "samples": self.samples,
            "threshold": finite(self.threshold),
            "temperature": self.temperature,
            "unfamiliar_below": None if self.familiarity is None else self.familiarity.threshold,
            "expected": None if self.expected is None else asdict(self.expected),
            "training_images": None if self.training is None else self.training.description(),
            "training": self.record,
            "versions": {"bayescal": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    @staticmethod
    def saved_fields(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Any]:
        """What `tensors` and `description` say, as the constructor takes it: everything but the backbone."""
        known = config.get("unfamiliar_below")  # models of 0.1 have none
        expected = config.get("expected")
        return {
            "classes": config["classes"],
            "class_words": tuple(config["class_words"]),
            "environments": config["environments"],
            "prototypes": tensors["environment_prototypes"],
            "samples": config["samples"],
            "threshold": math.inf if config["threshold"] is None else config["threshold"],
            "temperature": config["temperature"],
            "familiarity": None
            if known is None
            else Familiarity(
                *(tensors[f"familiarity/{name}"] for name in FAMILIARITY),
                threshold=known,
                **{name: tensors.get(f"familiarity/{name}") for name in SINCE},
            ),
            "expected": None if expected is None else read(ExpectedAccuracy, expected),
            "training": TrainingImages.restore(tensors, config.get("training_images")),
            "record": config["training"],
        }


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
