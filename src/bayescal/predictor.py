"""A trained classifier in use: from image features to answers with their uncertainty, and to and from disk."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal import __version__, metrics
from bayescal.artifact import read_artifact, write_artifact
from bayescal.backbones import Backbone, load_backbone
from bayescal.errors import ArtifactError
from bayescal.methods import get_method
from bayescal.methods.base import Method, Runs, Task, predict
from bayescal.optim import Params
from bayescal.stacks import Problem

END_TO_END = "end-to-end"  # the "kind" of models that hold their own image model (bayescal.end_to_end)


@dataclass(frozen=True)
class Details:
    """What the classifier says about each of N images."""

    labels: np.ndarray  # (N,): the most probable class
    probabilities: np.ndarray  # (N, C)
    confidence: np.ndarray  # (N,): probability of that class
    unsure: np.ndarray  # (N,) bool: confidence below the threshold found on validation images
    entropy: np.ndarray  # (N,): total uncertainty in nats
    mutual_information: np.ndarray  # (N,): the part that comes from not knowing the parameters; 0 without a posterior
    environment: np.ndarray  # (N,): the training environment whose images look most like this one


@dataclass
class Predictor:
    """What training learned, bound to its backbone. Ensemble members are rows of the parameters."""

    backbone: Backbone
    method: str
    config: dict[str, Any]
    seeds: list[int]
    params: Params  # (members, …) each
    classes: list[Any]  # labels, as the user gave them
    class_words: tuple[str, ...]
    environments: list[Any]
    trained_environments: tuple[str, ...]  # words
    prototypes: Tensor  # (E, D): mean direction of each training environment's images
    draws: int = 20
    threshold: float = 0.0
    temperature: float = 1.0
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bound = self.bind()
        device = self.backbone.device
        self.params = {name: value.to(device) for name, value in self.params.items()}
        self.prototypes = self.prototypes.to(device)

    def bind(self, class_words: Sequence[str] | None = None) -> Method:
        """The method with these parameters' rows; other words for the classes predict other classes."""
        cls, backbone = get_method(self.method), self.backbone
        words = self.class_words if class_words is None else tuple(class_words)
        task = Task(backbone.text, backbone.tokenize, backbone.logit_scale, words, (self.trained_environments,))
        return cls(task, Runs.stack(cls.space, [self.config] * len(self.seeds), self.seeds, backbone.device))

    def posterior(self, features: Tensor, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predictive mean (N, C) and mutual information (N,), over posterior draws and ensemble members."""
        predictive = predict(self.bound, self.params, features.to(self.backbone.device), self.draws, groups)
        probs = predictive.probs.mean(0)
        # Before the temperature, which changes the mean and not the draws: their entropies would not compare.
        information = metrics.mutual_information(probs, predictive.expected_entropy.mean(0))
        if self.temperature != 1.0:
            probs = (probs.clamp(min=1e-12).log() / self.temperature).softmax(-1)
        return probs, information

    def details(self, features: Tensor, groups: Tensor | None = None) -> Details:
        """Everything that can be said about images, from their features (N, D).

        `groups` (N,) numbers the place each image comes from, if known; only methods that read the place off a batch
        of images (DPLCLIP) use it.
        """
        features = features.to(self.backbone.device)
        probs, information = self.posterior(features, groups)
        sure, answer = probs.max(1)
        nearest = (F.normalize(features, dim=-1) @ self.prototypes.T).argmax(1)
        return Details(
            labels=np.array(self.classes)[answer.cpu().numpy()],
            probabilities=probs.cpu().numpy(),
            confidence=sure.cpu().numpy(),
            unsure=(sure < self.threshold).cpu().numpy(),
            entropy=metrics.predictive_entropy(probs).cpu().numpy(),
            mutual_information=information.cpu().numpy(),
            environment=np.array(self.environments)[nearest.cpu().numpy()],
        )

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the folder that `load` reads: model.safetensors and config.json."""
        write_artifact(path, self._tensors(), self._config(), overwrite)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"params/{name}": value for name, value in self.params.items()}
        return tensors | {"environment_prototypes": self.prototypes}

    def _config(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "config": self.config,
            "seeds": self.seeds,
            "classes": self.classes,
            "class_words": list(self.class_words),
            "environments": self.environments,
            "trained_environments": list(self.trained_environments),
            "backbone": {"name": self.backbone.name, "fingerprint": self.backbone.fingerprint},
            "draws": self.draws,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,  # JSON knows no infinity
            "temperature": self.temperature,
            "training": self.record,
            "versions": {"bayescal": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    @classmethod
    def load(cls, path: str | Path, backbone: str | None = None, device: str = "cpu") -> "Predictor":
        """Read a saved model; `backbone` says where the weights are now, if they have moved."""
        tensors, config = read_artifact(path)
        if config.get("kind") == END_TO_END:
            from bayescal.end_to_end.predictor import EndToEndPredictor

            return EndToEndPredictor.restore(tensors, config, path, backbone, device)
        made_with = config["backbone"]
        loaded = load_backbone(backbone or made_with["name"], device)
        if loaded.fingerprint != made_with["fingerprint"]:
            raise ArtifactError(
                f"{path} was made with backbone {made_with['name']!r} (fingerprint {made_with['fingerprint']}), but "
                f"{loaded.name!r} has fingerprint {loaded.fingerprint}: pass the backbone it was made with"
            )
        return cls(backbone=loaded, **cls._fields(tensors, config))

    @staticmethod
    def _fields(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Any]:
        """Everything but the backbone, as the constructor takes it."""
        return {
            "method": config["method"],
            "config": config["config"],
            "seeds": config["seeds"],
            "params": {n.removeprefix("params/"): v for n, v in tensors.items() if n.startswith("params/")},
            "classes": config["classes"],
            "class_words": tuple(config["class_words"]),
            "environments": config["environments"],
            "trained_environments": tuple(config["trained_environments"]),
            "prototypes": tensors["environment_prototypes"],
            "draws": config["draws"],
            "threshold": math.inf if config["threshold"] is None else config["threshold"],
            "temperature": config["temperature"],
            "record": config["training"],
        }


def environment_prototypes(problem: Problem, rows: Tensor) -> Tensor:
    """Mean direction of each environment's images among these rows: (E, D)."""
    features = F.normalize(problem.features[rows], dim=-1)
    member = F.one_hot(problem.environments[rows], len(problem.environment_words)).to(features)
    return F.normalize(member.T @ features, dim=-1)


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """The temperature that minimises the cross-entropy of p^(1/T) (Guo et al. 2017). probs (N, C), labels (N,)."""
    logits = probs.double().clamp(min=1e-12).log()
    grid = torch.logspace(-2, 2, 801, dtype=torch.float64, device=probs.device)  # steps of 1.2 %: finer is noise
    losses = torch.stack([F.cross_entropy(logits / t, labels) for t in grid])
    return float(grid[losses.argmin()])
