"""Bayes-CAL: CAL with a mean-field Gaussian posterior over what the prompts learn.

    L = L_CAL(φ ~ q) + β/N · ( KL(q_C‖p_C) + KL(q_E‖p_E) )

φ is drawn by the reparameterisation trick, φ = μ + σ·ε with σ = softplus(ρ) a standard deviation, `train_samples` draws
a step. The prior is a Gaussian around the initial value of φ; β = 1 is the exact evidence lower bound. Prediction is
the mean of the softmax over posterior draws: text features are computed once per draw and serve every image.
"""

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal import objectives, rng
from bayescal.methods.base import Batch, Params, Samples, Terms
from bayescal.methods.cal import CAL
from bayescal.optim import per_row
from bayescal.space import Space, number, setting


class BayesCAL(CAL):
    name = "bayes-cal"
    title = "Bayes-CAL"
    learns = "mean and scale of the context vectors of a class and an environment prompt"
    cost = "train_samples × two prompt trees"
    space: ClassVar[Space] = {
        **CAL.space,
        "beta": number(lambda b: b.beta),
        "prior_scale": number(lambda b: b.prior_scale),
        "initial_scale": number(lambda b: b.initial_scale),  # σ at the start, as a fraction of the prior's
        "train_samples": setting(1),
    }

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
            params[f"{branch}.rho"] = per_row(start, mean).expand_as(mean).to(mean.dtype, copy=True)
        return params

    def decays(self, name: str) -> bool:
        return not name.endswith(".rho")  # decay on means only: a scale has its prior

    def draw(self, params: Params, branch: str, step: int) -> Tensor:
        return self.sample(params, branch, f"{branch}/train", step, self.runs["train_samples"])

    def sample(self, params: Params, branch: str, stream: str, step: int, draws: int) -> Tensor:
        """Posterior draws of φ: (R, S, …); draws = 0 gives the posterior mean."""
        mean = self.branches[branch].mean(self.branch(params, branch))
        if draws == 0:
            return mean[:, None]
        noise = rng.normal(self.runs.seeds, stream, step, (draws, *mean.shape[1:])).to(mean.dtype)
        return mean[:, None] + F.softplus(params[f"{branch}.rho"])[:, None] * noise

    def kl(self, params: Params, branch: str) -> Tensor:
        """KL(q‖p) of one branch, summed over a run's parameters: (R,)."""
        mean = self.branches[branch].mean(self.branch(params, branch))
        prior_std = per_row(self.runs["prior_scale"], mean)
        each = objectives.gaussian_kl(mean, F.softplus(params[f"{branch}.rho"]), self.prior_mean[branch], prior_std)
        return each.flatten(1).sum(1)

    def loss(self, params: Params, batch: Batch) -> Terms:
        terms = super().loss(params, batch)
        terms["kl"] = torch.stack([self.kl(params, branch) for branch in self.branches]).sum(0)
        terms["total"] = terms["total"] + self.runs["beta"] / batch.n_train * terms["kl"]
        return terms

    def prepare(self, params: Params, draws: int) -> Tensor:
        return self.branches["class"].features(self.sample(params, "class", "class/predict", 0, draws))


def softplus_inverse(y: Tensor) -> Tensor:
    """ρ with softplus(ρ) = y, exact for small y too."""
    return y + torch.log(-torch.expm1(-y))
