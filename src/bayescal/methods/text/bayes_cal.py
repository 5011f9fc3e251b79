"""Bayes-CAL: CAL with a mean-field Gaussian posterior over what the prompts learn.

    L = L_CAL(φ ~ q) + β/N · ( KL(q_C‖p_C) + KL(q_E‖p_E) )

φ is sampled by the reparameterisation trick, φ = μ + σ·ε with σ = softplus(ρ) a standard deviation, `train_samples`
times a step. The prior is a Gaussian around the initial value of φ. β = 1 is the exact evidence lower bound; the
paper's literal objective, whose KL is not divided by N, is β = N; β < 1 tempers the posterior: the prior counts for
less than the images (docs/concepts.md). Prediction is the mean of the softmax over posterior samples: text features are
computed once per sample and serve every image.
"""

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine import rng
from bayescal.engine.optim import SGD, Adam, Optimizer
from bayescal.engine.params import per_run
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Samples, Step, Task, Terms
from bayescal.methods.hyperparameters import Space, choice, number, setting
from bayescal.methods.text.cal import CAL

OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(), "adam": Adam()}
LOWEST_RHO = -30.0  # σ = 1e-13: next to any φ this is no noise at all, even in float64


class BayesCAL(CAL):
    name = "bayes-cal"
    title = "Bayes-CAL"
    learns = "mean and scale of the context vectors of a class and an environment prompt"
    cost = "train_samples × two prompt trees"
    has_posterior = True
    space: ClassVar[Space] = {
        **CAL.space,
        "learning_rate": number(lambda b: b.posterior.learning_rate),
        "epochs": setting(lambda b: b.posterior.epochs),
        "batch_size": setting(lambda b: b.posterior.batch_size),
        "class_specific": setting(lambda b: b.posterior.class_specific, choice(True, False)),
        "optimizer": setting(lambda b: b.posterior.optimizer),  # sgd or adam
        "beta": number(lambda b: b.posterior.beta),
        "prior_scale": number(lambda b: b.posterior.prior_scale),
        "initial_scale": number(lambda b: b.posterior.initial_scale),  # σ at the start, as a fraction of the prior's
        "train_samples": setting(1),
    }

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        # Configs that were saved before there was a choice have none: all of them were trained by SGD.
        chosen = runs.settings.get("optimizer", "sgd")
        if chosen not in OPTIMIZERS:
            raise MethodError(f"optimizer is {chosen!r}, expected one of {', '.join(OPTIMIZERS)}")
        self.optimizer = OPTIMIZERS[chosen]

    @cached_property
    def prior_mean(self) -> dict[str, Tensor]:
        """ "The prior mean is the initial value of φ": a function of the seed, so it needs no storage.

        Made when training asks for it: prediction must not need what the prior is made of.
        """
        return {branch: network.mean(network.init()).detach() for branch, network in self.branches.items()}

    def init(self, train: Samples) -> Params:
        params = super().init(train)
        start = softplus_inverse(self.runs["initial_scale"] * self.runs["prior_scale"])  # (R,)
        for branch, mean in self.prior_mean.items():
            params[f"{branch}.rho"] = per_run(start, mean).expand_as(mean).to(mean.dtype, copy=True)
        return params

    def scale_parameters(self) -> tuple[str, ...]:
        return tuple(f"{branch}.rho" for branch in self.branches)

    def decays(self, name: str) -> bool:
        return name not in self.scale_parameters()  # decay on means only: a scale has its prior

    def training_sample(self, params: Params, branch: str, step: Step) -> Tensor:
        return self.sample(params, branch, f"{branch}/train", step, self.runs["train_samples"])

    def sample(self, params: Params, branch: str, stream: str, step: Step, samples: int) -> Tensor:
        """Posterior samples of φ: (R, S, …); samples = 0 gives the posterior mean."""
        mean = self.branches[branch].mean(self.branch(params, branch))
        if samples == 0:
            return mean[:, None]
        noise = rng.normal(self.runs.seeds, stream, step, (samples, *mean.shape[1:])).to(mean.dtype)
        return mean[:, None] + standard_deviation(params[f"{branch}.rho"])[:, None] * noise

    def kl(self, params: Params, branch: str) -> Tensor:
        """KL(q‖p) of one branch, summed over a run's parameters: (R,)."""
        mean = self.branches[branch].mean(self.branch(params, branch))
        prior_std = per_run(self.runs["prior_scale"], mean)
        std = standard_deviation(params[f"{branch}.rho"])
        each = losses.gaussian_kl(mean, std, self.prior_mean[branch], prior_std)
        return each.flatten(1).sum(1)

    def loss(self, params: Params, batch: Batch) -> Terms:
        terms = super().loss(params, batch)
        terms["kl"] = torch.stack([self.kl(params, branch) for branch in self.branches]).sum(0)
        terms["total"] = terms["total"] + self.runs["beta"] / batch.n_train * terms["kl"]
        return terms

    def prepare(self, params: Params, samples: int) -> Tensor:
        text = self.branches["class"].features(self.sample(params, "class", "class/predict", 0, samples))
        return losses.class_weights(text, self.task.logit_scale)  # (R, S, C, D)


def standard_deviation(rho: Tensor) -> Tensor:
    """σ = softplus(ρ), not below softplus(LOWEST_RHO): in float32 softplus itself ends at zero, and log σ at −∞.

    The gradient passes the bound, so that the KL can lead a scale back that a long step has thrown below it.
    """
    return F.softplus(rho + (rho.clamp(min=LOWEST_RHO) - rho).detach())


def softplus_inverse(y: Tensor) -> Tensor:
    """ρ with softplus(ρ) = y, exact for small y too."""
    return y + torch.log(-torch.expm1(-y))
