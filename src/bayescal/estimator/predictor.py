"""Trained classifiers in use: one method, or several in one model; from image features to what is believed of them."""

import abc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal.backbones import Backbone, load_backbone, mini
from bayescal.engine.params import Params
from bayescal.errors import ArtifactError
from bayescal.estimator.artifact import AUTO, STACKED
from bayescal.estimator.base_predictor import FEW_SHOT, BasePredictor, Posterior, register_kind
from bayescal.estimator.checking import check_answers, check_method, restoring
from bayescal.estimator.kept import NotKept, put_together, taken_apart
from bayescal.estimator.saved_method import restored_method, saved_method
from bayescal.evaluation import calibration, metrics
from bayescal.evaluation.stacking import mixture
from bayescal.methods import get_method, method_reference
from bayescal.methods.contract import Method, Runs, Task, predict
from bayescal.methods.hyperparameters import renamed
from bayescal.training.runs import StackResult

log = logging.getLogger(__name__)

KEPT = "prepared/"  # what begins the names of the tensors that prediction needs and no image changes


@dataclass(kw_only=True)
class MethodPredictor(BasePredictor):
    """One method. Ensemble members are runs of one stack of parameters."""

    method: str | type[Method]
    config: dict[str, Any]
    seeds: list[int]
    params: Params  # (members, …) each
    trained_environments: tuple[str, ...]  # words

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bound = self.bind()
        self._prepared: tuple[int, Any] | None = None  # for how many posterior samples, and what
        self._read_from: str | Path | None = None
        self._tried = True
        self.params = {name: value.to(self.backbone.device) for name, value in self.params.items()}

    @property
    def method_name(self) -> str:
        return method_reference(self.method)

    @property
    def answers_depend_on_batch(self) -> bool:
        return self.bound.answers_depend_on_batch

    @abc.abstractmethod
    def bind(self, class_words: Sequence[str] | None = None) -> Method:
        """The method with the members' numbers; other words for the classes predict other classes."""

    def prepared(self) -> Any:
        """What no image changes, such as the text features of the posterior's samples: computed once, or read.

        A saved model keeps it for its number of samples; for another the text tower reads the prompts again.
        """
        if self._prepared is None or self._prepared[0] != self.samples:
            with torch.no_grad(), restoring(self._read_from, self.method_name):
                self._prepared = self.samples, self.bound.prepare(self.params, self.samples)
        return self._prepared[1]

    def predictive(self, features: Tensor, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Over posterior samples and ensemble members, before the temperature: probs (N, C), and their mean entropy."""
        if not self._tried:
            self._try()
        return self._answer(features, groups)

    def _answer(self, features: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
        features = features.to(self.backbone.device)
        found = predict(self.bound, self.params, features, self.samples, groups, prepared=self.prepared())
        return found.probs.mean(0), found.expected_entropy.mean(0)

    def posterior(self, features: Tensor, groups: Tensor | None = None) -> Posterior:
        """Over posterior samples and ensemble members."""
        probs, expected_entropy = self.predictive(features, groups)
        # Before the temperature, which changes the mean and not the samples: their entropies would not compare.
        information = metrics.mutual_information(probs, expected_entropy)
        return Posterior(
            calibration.at_temperature(probs, self.temperature), information, torch.zeros_like(information)
        )

    def try_out(self, path: str | Path) -> None:
        """At once where the model keeps what it needs; otherwise the first answer has to read the text tower anyway."""
        self._read_from, self._tried = path, False
        if self._prepared is not None and self._prepared[0] == self.samples:
            self._try()

    def _try(self) -> None:
        """Answer for two directions of the feature space, as a batch."""
        with torch.no_grad(), restoring(self._read_from, self.method_name):
            images = torch.eye(2, self.backbone.dim)
            probs = calibration.at_temperature(self._answer(images, None)[0], self.temperature)
            check_answers(probs, len(images), len(self.classes))
        self._tried = True

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | self.own_tensors()

    def own_tensors(self) -> dict[str, Tensor]:
        kept, _ = self.kept()
        return {f"params/{name}": value for name, value in self.params.items()} | kept

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """What `prepared` says, as tensors and an entry of the config; nothing where every image needs the tower."""
        if self.bound.prompts_depend_on_images:
            return {}, None
        try:
            tensors, form = taken_apart(self.prepared())
        except NotKept as error:
            log.info("%s: what it prepares for prediction is not kept in the model (%s)", self.method_name, error)
            return {}, None
        about = {"samples": self.samples, "version": self.bound.version, "form": form}
        return {f"{KEPT}{name}": value for name, value in tensors.items()}, about

    def take_kept(self, tensors: Mapping[str, Tensor], about: dict[str, Any] | None) -> None:
        """Predict with what a saved model kept, unless its method has changed since."""
        if about is None or about["version"] != self.bound.version:
            return
        held = {n.removeprefix(KEPT): v.to(self.backbone.device) for n, v in tensors.items() if n.startswith(KEPT)}
        self._prepared = about["samples"], put_together(about["form"], held)

    def description(self) -> dict[str, Any]:
        return {**self.own_description(), **super().description()}

    def own_description(self) -> dict[str, Any]:
        """The method, and what it needs to be bound again."""
        return {
            **saved_method(self.method),
            "config": self.config,
            "seeds": self.seeds,
            "trained_environments": list(self.trained_environments),
            "prepared": self.kept()[1],
        }

    @staticmethod
    def saved_fields(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Any]:
        own = MethodPredictor.own_fields(tensors, config)
        return own | BasePredictor.saved_fields(tensors, config)

    @staticmethod
    def own_fields(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Any]:
        """What `own_tensors` and `own_description` say."""
        return {
            "method": restored_method(config),
            "config": renamed(config["method"], config["config"]),
            "seeds": config["seeds"],
            "params": {n.removeprefix("params/"): v for n, v in tensors.items() if n.startswith("params/")},
            "trained_environments": tuple(config["trained_environments"]),
        }


class Predictor(MethodPredictor):
    """What training learned, bound to a frozen backbone with a text tower."""

    backbone: Backbone

    @classmethod
    def of(cls, backbone: Backbone, members: StackResult, checkpoint: str = "val", **fields: Any) -> "Predictor":
        """From trained runs, the members of an ensemble, which share a config; `fields` are the rest."""
        return cls(
            backbone=backbone,
            method=members.method,
            config=members.configs[0],
            seeds=list(members.seeds),
            params=members.params_at(checkpoint),
            trained_environments=members.environments[0],
            **fields,
        )

    def bind(self, class_words: Sequence[str] | None = None) -> Method:
        cls, backbone = get_method(self.method), self.backbone
        words = self.class_words if class_words is None else tuple(class_words)
        task = Task(backbone.tower, backbone.tokenize, backbone.logit_scale, words, (self.trained_environments,))
        return cls(task, Runs.stack(cls.space, [self.config] * len(self.seeds), self.seeds, backbone.device))

    @classmethod
    def restore(
        cls, tensors: dict[str, Tensor], config: dict[str, Any], path: str | Path, backbone: str | None, device: str
    ) -> "Predictor":
        """From what the artifact at `path` holds."""
        loaded = same_backbone(config, path, backbone, device)
        with restoring(path, str(config["method"])):
            fields = cls.saved_fields(tensors, config)
            _check_fields(fields, loaded)
            predictor = cls(backbone=loaded, **fields)
            predictor.take_kept(tensors, config.get("prepared"))
        return predictor


@dataclass(kw_only=True)
class StackedPredictor(BasePredictor):
    """Several methods, each as far trusted as it was right where it had not been: Σ_k w_k p_k."""

    backbone: Backbone
    members: dict[str, Predictor]  # by the name of the member
    weights: Tensor  # (K,), on the simplex
    mixture_name: str = AUTO

    @property
    def method_name(self) -> str:
        return self.mixture_name

    @property
    def answers_depend_on_batch(self) -> bool:
        return any(member.answers_depend_on_batch for member in self.members.values())

    def try_out(self, path: str | Path) -> None:
        for member in self.members.values():
            member.try_out(path)

    def posterior(self, features: Tensor, groups: Tensor | None = None) -> Posterior:
        """The mixture. Its entropy = disagreement + mutual information + the members' own, before the temperature."""
        parts = [member.predictive(features, groups) for member in self.members.values()]
        probs, entropies = map(torch.stack, zip(*parts, strict=True))  # (K, N, C), (K, N)
        weights = self.weights.to(probs.device)
        mixed = mixture(weights, probs)
        expected = weights @ metrics.predictive_entropy(probs).to(weights)
        disagreement = metrics.mutual_information(mixed, expected.to(mixed))
        information = weights @ metrics.mutual_information(probs, entropies).to(weights)
        return Posterior(calibration.at_temperature(mixed, self.temperature), information, disagreement)

    def tensors(self) -> dict[str, Tensor]:
        own = {
            f"members/{name}/{key}": value
            for name, member in self.members.items()
            for key, value in member.own_tensors().items()
        }
        return super().tensors() | {"weights": self.weights} | own

    def description(self) -> dict[str, Any]:
        members = {name: member.own_description() for name, member in self.members.items()}
        return {"kind": STACKED, "method": self.mixture_name, "members": members, **super().description()}

    @classmethod
    def restore(
        cls, tensors: dict[str, Tensor], config: dict[str, Any], path: str | Path, backbone: str | None, device: str
    ) -> "StackedPredictor":
        """From what the artifact at `path` holds."""
        loaded, shared = same_backbone(config, path, backbone, device), cls.saved_fields(tensors, config)
        members = {}
        for name, own in config["members"].items():
            with restoring(path, f"its member {name!r}"):
                start = f"members/{name}/"
                held = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
                fields = Predictor.own_fields(held, own)
                _check_fields(fields, loaded)
                members[name] = member_predictor(loaded, shared, **fields)
                members[name].take_kept(held, own.get("prepared"))
        return cls(
            backbone=loaded, members=members, weights=tensors["weights"], mixture_name=config["method"], **shared
        )


def member_predictor(backbone: Backbone, shared: Mapping[str, Any], **own: Any) -> Predictor:
    """A member of a stacked model: its own method and parameters, and the names that all members share."""
    names = ("classes", "class_words", "environments", "prototypes", "samples")
    return Predictor(backbone=backbone, **{name: shared[name] for name in names}, **own)


def _check_fields(own: Mapping[str, Any], backbone: Backbone) -> None:
    """Refuse the numbers of a method (`own_fields`) that it does not take."""
    check_method(get_method(own["method"]).space, own["config"], own["params"], len(own["seeds"]), backbone.defaults)


def same_backbone(config: dict[str, Any], path: str | Path, backbone: str | None, device: str) -> Backbone:
    """The backbone that a model was made with, wherever it is now; any other one is refused."""
    made_with = config["backbone"]
    if made_with["fingerprint"] == mini.FIRST_FINGERPRINT:
        raise ArtifactError(f"{path} {mini.FIRST_IS_GONE}: fit again")
    loaded = load_backbone(backbone or made_with["name"], device)
    if loaded.fingerprint != made_with["fingerprint"]:
        raise ArtifactError(
            f"{path} was made with backbone {made_with['name']!r} (fingerprint {made_with['fingerprint']}), but "
            f"{loaded.name!r} has fingerprint {loaded.fingerprint}: pass the backbone it was made with"
        )
    return loaded


register_kind(FEW_SHOT, Predictor.restore)
register_kind(STACKED, StackedPredictor.restore)
