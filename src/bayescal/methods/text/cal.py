"""CAL: cross-modal alignment learning, the deterministic form of Bayes-CAL.

    L = CE(Ŷ_C, y) + λ1·CE(Ŷ_E, e) + λ2·L_IRM(φ_C) + λ3·L_orth(φ_C, φ_E)

Two branches of the same form: class names with parameters φ_C, names of the training environments with φ_E.
L_IRM asks that one scaling of the class logits suits every environment; L_orth that the direction in which an image
feature would have to move to change its class is orthogonal to the one that would change its environment.
Prediction uses the class branch alone. With one environment, only the first term is left.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods import losses
from bayescal.methods.contract import COMMON, Batch, Method, Params, Runs, Samples, Step, Task, Terms
from bayescal.methods.hyperparameters import Space, log10_uniform, number
from bayescal.methods.text.networks import PromptNetwork, TaskNetwork

CAL_TERMS: Space = {
    "lambda_env": number(0.1, log10_uniform(-3, 0)),
    "lambda_irm": number(0.1, log10_uniform(-2, 0)),
    "lambda_orth": number(0.1, log10_uniform(-3, 0)),
}


class CAL(Method):
    name = "cal"
    title = "CAL"
    version = 2  # since L_orth is exact on confident data
    learns = "context vectors of a class and an environment prompt"
    cost = "two prompt trees (classes, environments)"
    citation = "Zhu et al., Bayesian Cross-Modal Alignment Learning for Few-Shot OoD Generalization, AAAI 2023"
    uses_text = True
    reads_environment_names = True
    reads_new_names = True
    alignment_terms = True
    predict_chunk = 65536  # an image is one cosine per class
    network: ClassVar[type[TaskNetwork]] = PromptNetwork
    space: ClassVar[Space] = {**COMMON, **PromptNetwork.space, **CAL_TERMS}

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        self.branches = {"class": self.network(task, runs, [task.classes], "class")}
        # Without λ1 and λ3 nothing of the environment branch can reach the class branch: leave it out.
        wanted = (runs["lambda_env"] != 0) | (runs["lambda_orth"] != 0)
        if task.n_environments > 1 and bool(wanted.any()):
            self.branches["environment"] = self.network(task, runs, task.environments, "environment")

    @cached_property
    def read(self) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Samples of φ of all branches → their text features. Made when training asks: prediction needs one branch."""
        return self.network.together(list(self.branches.values()))

    def init(self, train: Samples) -> Params:
        return {
            f"{branch}.{name}": value
            for branch, network in self.branches.items()
            for name, value in network.init().items()
        }

    def run_bytes(self, train: Samples) -> int:
        samples = self.runs.settings.get("train_samples", 1)
        return super().run_bytes(train) + samples * sum(network.kept_bytes() for network in self.branches.values())

    def training_operations(self, train: Samples) -> float:
        """Of the text side, and of comparing images with names."""
        samples = self.runs.settings.get("train_samples", 1)
        read = self.steps(train) * sum(network.training_operations() for network in self.branches.values())
        images = self.runs["epochs"] * train.labels.shape[1]
        return samples * (read + 6.0 * images * self.task.n_classes * self.task.dim)

    def branch(self, params: Params, branch: str) -> Params:
        """The parameters of one branch under their own names."""
        start = branch + "."
        return {name.removeprefix(start): value for name, value in params.items() if name.startswith(start)}

    def measured_parameters(self, params: Params) -> tuple[str, ...]:
        """φ_C: what is learned of the class branch (of its mean, where it has a distribution)."""
        others = (*self.frozen, *self.scale_parameters())
        return tuple(name for name in params if name.startswith("class.") and name not in others)

    def training_sample(self, params: Params, branch: str, step: Step) -> Tensor:
        """φ of a branch: (R, S, …). Here a point, so S = 1."""
        return self.branches[branch].mean(self.branch(params, branch))[:, None]

    def loss(self, params: Params, batch: Batch) -> Terms:
        scale, runs, n_env = self.task.logit_scale, self.runs, self.task.n_environments
        images = batch.features[:, None]  # (R, 1, B, D): the same for every sample
        y, e = batch.labels[:, None], batch.environments[:, None]  # (R, 1, B)

        texts = self.read(
            [self.training_sample(params, branch, batch.step) for branch in self.branches]
        )  # (R, S, K, D) each
        logits = losses.cosine_logits(images, torch.cat(texts, dim=2), scale)
        logits_c, *rest = logits.split([text.shape[2] for text in texts], dim=-1)
        terms = {"ce": losses.cross_entropy(logits_c, y).mean(1)}
        total = terms["ce"]
        if n_env > 1:
            terms["irm"] = losses.irm_penalty(logits_c, y, e, n_env).mean(1)
            total = total + runs["lambda_irm"] * terms["irm"]
        if "environment" in self.branches:
            logits_e = rest[0]
            terms["env"] = losses.cross_entropy(logits_e, e).mean(1)
            sides = (texts[0], logits_c, y), (texts[1], logits_e, e)
            terms["orth"] = losses.orthogonality(*sides, scale).mean(1)
            total = total + runs["lambda_env"] * terms["env"] + runs["lambda_orth"] * terms["orth"]
        return {**terms, "total": total}

    def prepare(self, params: Params, samples: int) -> Tensor:
        text = self.branches["class"].features(self.training_sample(params, "class", 0))  # (R, 1, C, D)
        return losses.class_weights(text, self.task.logit_scale)

    def logits(self, prepared: Tensor, features: Tensor, groups: Tensor | None = None) -> Tensor:
        images = features[:, None] if features.dim() == 3 else features
        return losses.weighted_logits(images, prepared)
