"""MLDG: meta-learning domain generalisation. A step on some environments must also help on the others.

    L(θ) = F(θ) + λ G(θ − α ∇F(θ))

F is the mean loss of the meta-train environments, G that of the meta-test ones; which are which is drawn anew in every
step. `second_order` differentiates through the inner step; otherwise ∇F inside G counts as a constant and the gradient
is ∇F(θ) + λ ∇G(θ'), θ' = θ − α∇F(θ), as in DomainBed. With one environment there is nothing to hold out, and F alone
is left.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.params import per_run
from bayescal.methods.contract import Batch, Params, Step, Terms
from bayescal.methods.domain_generalization._environments import masked_mean
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, choice, log10_uniform, number, setting


class MLDG(VisualMethod):
    name = "mldg"
    title = "MLDG"
    learns = "a three-layer network on image features"
    cost = "two passes of the network (about four with second_order)"
    citation = "Li et al., Learning to Generalize: Meta-Learning for Domain Generalization, AAAI 2018"
    space: ClassVar[Space] = {
        **VISUAL,
        "lambda_meta_test": number(1.0, log10_uniform(-1, 1), drawn_as="mldg_beta"),
        "inner_rate": number(0.01),  # α; DomainBed has one rate for both steps, but its inner step is Adam's
        "meta_test_environments": setting(2, choice(1, 2), drawn_as="mldg_meta_test"),  # at most all but one
        "second_order": setting(False),
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        exact = self.runs["second_order"]
        each = self.sample_losses(params, batch)
        risks, present = self.environment_losses(each, batch)
        held_out = self.held_out(batch.step)
        train_risk = masked_mean(risks, present * ~held_out)

        moved = self.learned(params)
        gradients = torch.autograd.grad(train_risk.sum(), list(moved.values()), create_graph=exact, retain_graph=True)
        rate = self.runs["inner_rate"]
        inner = {n: v - per_run(rate, v) * g for (n, v), g in zip(moved.items(), gradients, strict=True)}
        inner_risks, _ = self.environment_losses(self.sample_losses({**params, **inner}, batch), batch)
        test_risk = masked_mean(inner_risks, present * held_out)
        total = train_risk + self.runs["lambda_meta_test"] * test_risk
        return {"ce": each.mean(1), "meta_train": train_risk, "meta_test": test_risk, "total": total}

    def held_out(self, step: Step) -> Tensor:
        """Which environments are meta-test in this step: (R, E) bool."""
        n = self.task.n_environments
        order = rng.permutations(self.runs.seeds, "mldg/split", step, n)
        return order < min(self.runs["meta_test_environments"], n - 1)
