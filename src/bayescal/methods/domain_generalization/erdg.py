"""ERDG: domain generalisation via entropy regularisation. The same features, and the same meaning of them, everywhere.

    min  CE(T(h), y)                               classifier T and features
    D:   CE(D(h), e), features against it by λ_d    p(h) alike in all environments
    T'_g: CE(T'_g(h_g), y), features against it by λ_cp   ≈ H(Y|h) of each environment, maximised by the features
    T_g: CE(T_g(h_g), y), features untouched;  features get λ_c ∇CE(T_g(h_g'), y), g' ≠ g

With the shared classifier, the entropy term makes Σ_g KL( p_g(Y|h) ‖ T(h) ) small: conditional invariance. T_g, trained
on one environment and held fixed for the features, asks that it also reads the others. Environment-wise classifiers
and discriminator are linear, as in OoD-Bench, whose ranges are used; all players move in one step.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Samples, Task, Terms
from bayescal.methods.domain_generalization._environments import detached, masked_mean, membership, scale_gradient
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.domain_generalization.network import Heads, Network
from bayescal.methods.hyperparameters import Space, log10_uniform, number, setting


class ERDG(VisualMethod):
    name = "erdg"
    title = "ERDG"
    learns = "a three-layer network on image features, a discriminator and two classifiers per environment"
    cost = "one pass of the network, two to three heads per environment"
    citation = "Zhao et al., Domain Generalization via Entropy Regularization, NeurIPS 2020"
    space: ClassVar[Space] = {
        **VISUAL,
        "epochs": setting(15),  # once the classes fit, the adversaries are all that is left to train on
        "lambda_discriminator": number(0.01, log10_uniform(-2, 0), drawn_as="erdg_discriminator"),  # λ_d
        "lambda_cross": number(0.05, log10_uniform(-3, -1), drawn_as="erdg_cross"),  # λ_c
        "lambda_entropy": number(0.01, log10_uniform(-4, -1), drawn_as="erdg_entropy"),  # λ_cp
    }

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        width, classes, environments = self.network.n_features, self.network.n_classes, task.n_environments
        self.discriminator = Heads("discriminator", 1, width, environments)
        self.cross = Heads("cross", environments, width, classes)  # T_g
        self.entropy = Heads("entropy", environments, width, classes)  # T'_g

    def init(self, train: Samples) -> Params:
        heads = (self.discriminator, self.cross, self.entropy)
        return {**super().init(train), **{n: v for head in heads for n, v in head.init(self.runs.seeds).items()}}

    def loss(self, params: Params, batch: Batch) -> Terms:
        h = self.network.features(params, batch.features)
        ce = losses.cross_entropy(self.network.classify(params, h), batch.labels)
        own = membership(batch.environments, self.task.n_environments, h)  # (R, E, B)

        def through(name: str, sign: float) -> Tensor:
            """The features, their gradient times ±λ."""
            return scale_gradient(h, sign * self.runs[name][:, None, None])

        def reading(heads: Heads, weights: Params, features: Tensor, where: Tensor) -> Tensor:
            """Mean over environments of the loss of each one's classifier on the samples `where` (R, E, B)."""
            each = losses.sample_cross_entropy(heads(weights, features), batch.labels[:, None])
            return masked_mean(each, where).mean(1)

        guess = self.discriminator(params, through("lambda_discriminator", -1.0))[:, 0]
        terms = {
            "ce": ce,
            "discriminator": losses.cross_entropy(guess, batch.environments),
            "entropy": reading(self.entropy, params, through("lambda_entropy", -1.0), own),
            "own": reading(self.cross, params, h.detach(), own),
            "cross": reading(self.cross, detached(self.cross.own(params)), through("lambda_cross", 1.0), 1 - own),
        }
        return {**terms, "total": sum(terms.values(), torch.zeros_like(ce))}
