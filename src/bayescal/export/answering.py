"""A model's answers as one torch module of plain tensor operations: what `BasePredictor.details` says, as a graph can.

Everything that no image changes (text features of every posterior sample, adapters, caches) is a constant in it, so
the text tower is not needed. Ways to bound memory, such as chunks of images, are left out: a graph has no loops.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescal.errors import BayescalError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.predictor import MethodPredictor, StackedPredictor
from bayescal.evaluation.calibration import at_temperature
from bayescal.evaluation.stacking import mixture

SMALLEST = 1e-30  # probabilities below it add nothing to an entropy


class Answers(NamedTuple):
    """What the graph gives for N images; the names are those of its outputs."""

    probabilities: Tensor  # (N, C): posterior predictive mean, at the model's temperature
    entropy: Tensor  # (N,)
    mutual_information: Tensor  # (N,)
    disagreement: Tensor  # (N,)
    familiarity: Tensor  # (N,); NaN: the model does not know it
    environment: Tensor  # (N,) int64: the nearest training environment


class Belief(NamedTuple):
    """What is believed of N images, as `estimator.base_predictor.Posterior`, and before the temperature."""

    probs: Tensor  # (N, C)
    mutual_information: Tensor  # (N,)
    disagreement: Tensor  # (N,)


class MethodBelief(nn.Module):
    """One method, over its posterior samples and ensemble members: features (N, D) → `Belief`."""

    def __init__(self, predictor: MethodPredictor):
        super().__init__()
        self.method, self.prepared, self.temperature = predictor.bound, predictor.prepared(), predictor.temperature

    def forward(self, features: Tensor) -> Belief:
        log_p = self.method.logits(self.prepared, features).log_softmax(-1)  # (R, S, N, C)
        p = log_p.exp()
        expected = -(p * log_p.clamp(min=-1e4)).sum(-1).mean((0, 1))
        mean = p.mean((0, 1))
        information = (entropy(mean) - expected).clamp(min=0)
        return Belief(at_temperature(mean, self.temperature), information, torch.zeros_like(information))


class StackedBelief(nn.Module):
    """Several methods, each as far trusted as it was right where it had not been."""

    def __init__(self, predictor: StackedPredictor):
        super().__init__()
        self.members = nn.ModuleList(MethodBelief(member) for member in predictor.members.values())
        self.weights, self.temperature = predictor.weights.float(), predictor.temperature

    def forward(self, features: Tensor) -> Belief:
        parts = [member(features) for member in self.members]
        probs = torch.stack([part.probs for part in parts])  # (K, N, C)
        mean = mixture(self.weights, probs)
        disagreement = (entropy(mean) - self.weights @ entropy(probs)).clamp(min=0)
        information = self.weights @ torch.stack([part.mutual_information for part in parts])
        return Belief(at_temperature(mean, self.temperature), information, disagreement)


class FeatureAnswers(nn.Module):
    """Image features (N, D) → `Answers`."""

    def __init__(self, predictor: BasePredictor):
        super().__init__()
        self.belief = belief(predictor)
        self.prototypes, self.familiar = predictor.prototypes, predictor.familiarity

    def forward(self, features: Tensor) -> Answers:
        probs, information, disagreement = self.belief(features)
        directions = F.normalize(features, dim=-1)
        known = self.familiar
        familiarity = torch.full_like(information, torch.nan) if known is None else known.of_directions(directions)
        environment = (directions @ self.prototypes.T).argmax(1)
        return Answers(probs, entropy(probs), information, disagreement, familiarity, environment)


def check_exportable(predictor: BasePredictor) -> None:
    """Refuse models whose answer to an image takes more than the image's features."""
    members = predictor.members.values() if isinstance(predictor, StackedPredictor) else [predictor]
    for member in members:
        method = member.bound if isinstance(member, MethodPredictor) else None
        if method is not None and method.prompts_depend_on_images:
            raise BayescalError(
                f"{method.title} cannot be exported: its text features depend on the images that it is asked about, so "
                "it needs the text tower for every answer. Methods whose text features are fixed after training can be "
                "(bayes-cal, coop, logistic-regression, auto and others)"
            )
        if method is not None and method.answers_depend_on_batch:
            raise BayescalError(
                f"{method.title} cannot be exported: its answer to an image depends on the images given with it, which "
                "an exported model answers a few at a time. Use the model itself, with `bayescal predict`"
            )


def belief(predictor: BasePredictor) -> nn.Module:
    """The part of the graph that the kind of model decides."""
    if isinstance(predictor, StackedPredictor):
        return StackedBelief(predictor)
    if isinstance(predictor, MethodPredictor):
        return MethodBelief(predictor)
    raise BayescalError(
        f"a model of the kind {type(predictor).__name__} cannot be exported: only its own class knows it"
    )


def entropy(probs: Tensor) -> Tensor:
    """−Σ p log p in nats: (…, C) → (…)."""
    return -(probs * probs.clamp(min=SMALLEST).log()).sum(-1)
