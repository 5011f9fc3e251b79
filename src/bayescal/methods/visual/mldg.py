"""MLDG: meta-learning domain generalisation. A step on some environments must also help on the others.

    L(θ) = F(θ) + β G(θ − α ∇F(θ))

F is the mean loss of the meta-train environments, G that of the meta-test ones; which are which is drawn anew in every
step. `mldg_exact` differentiates through the inner step (second order); otherwise ∇F inside G counts as a constant and
the gradient is ∇F(θ) + β ∇G(θ'), θ' = θ − α∇F(θ), as in DomainBed. With one environment there is nothing to hold out,
and F alone is left.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal import rng
from bayescal.methods.base import Batch, Params, Terms
from bayescal.methods.visual.base import VISUAL, VisualMethod
from bayescal.methods.visual.environments import masked_mean
from bayescal.optim import per_row
from bayescal.space import Space, choice, log10_uniform, number, setting


class MLDG(VisualMethod):
    name = "mldg"
    title = "MLDG"
    learns = "a three-layer network on image features"
    cost = "two passes of the network (about four with mldg_exact)"
    citation = "Li et al., Learning to Generalize: Meta-Learning for Domain Generalization, AAAI 2018"
    space: ClassVar[Space] = {
        **VISUAL,
        "mldg_beta": number(1.0, log10_uniform(-1, 1)),
        "mldg_inner_rate": number(0.01),  # α; DomainBed has one rate for both steps, but its inner step is Adam's
        "mldg_meta_test": setting(2, choice(1, 2)),  # at most all environments but one
        "mldg_exact": setting(False),
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        exact = self.runs["mldg_exact"]
        losses = self.losses(params, batch)
        risks, present = self.environment_losses(losses, batch)
        held_out = self.held_out(batch.step)
        train_risk = masked_mean(risks, present * ~held_out)

        moved = self.learned(params)
        slopes = torch.autograd.grad(train_risk.sum(), list(moved.values()), create_graph=exact, retain_graph=True)
        rate = self.runs["mldg_inner_rate"]
        inner = {n: v - per_row(rate, v) * g for (n, v), g in zip(moved.items(), slopes, strict=True)}
        inner_risks, _ = self.environment_losses(self.losses({**params, **inner}, batch), batch)
        test_risk = masked_mean(inner_risks, present * held_out)
        total = train_risk + self.runs["mldg_beta"] * test_risk
        return {"ce": losses.mean(1), "meta_train": train_risk, "meta_test": test_risk, "total": total}

    def held_out(self, step: int) -> Tensor:
        """Which environments are meta-test in this step: (R, E) bool."""
        n = self.task.n_environments
        order = rng.permutations(self.runs.seeds, "mldg/split", step, n)
        return order < min(self.runs["mldg_meta_test"], n - 1)
