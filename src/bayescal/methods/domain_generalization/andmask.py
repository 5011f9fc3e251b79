"""ANDMask: learn only what all environments ask for.

    g = m ⊙ mean_g ∇ℓ_g / mean(m),      m_j = 1 if the component's sign agrees in at least τ of the environments

A component on which the environments disagree is a compromise that suits their average and may suit none of them.
Agreement is the share of the environments in the batch that have the more common sign, 1 being all of them. The paper
(and DomainBed, which draws its threshold from U(0.5, 1)) measures |mean sign| = 2·share − 1; U(0.75, 1) is that range.
An environment whose gradient is exactly zero counts half for either sign, as a sign of 0 does there; a component that
is zero in all of them is not kept. As in the authors' code, each parameter's gradient is divided by the share of its
components that were kept, so that a sparse mask does not make small steps.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.engine.params import per_run
from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization._environments import masked_mean
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, number, uniform

SMALLEST_SHARE = 1e-10  # as in the authors' code: where nothing is kept, nothing is divided


class ANDMask(VisualMethod):
    name = "andmask"
    title = "ANDMask"
    version = 3  # since the gradient is divided by the share that was kept
    learns = "a three-layer network on image features"
    cost = "one pass of the network forwards, one per environment backwards"
    citation = "Parascandolo et al., Learning Explanations that are Hard to Vary, ICLR 2021"
    space: ClassVar[Space] = {**VISUAL, "tau": number(1.0, uniform(0.75, 1.0), drawn_as="andmask_tau")}

    def loss(self, params: Params, batch: Batch) -> Terms:
        each = self.sample_losses(params, batch)
        risks, present = self.environment_losses(each, batch)
        return {"ce": each.mean(1), "total": masked_mean(risks, present)}

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        leaves = {name: value.detach().requires_grad_() for name, value in self.learned(params).items()}
        each = self.sample_losses({**params, **leaves}, batch)
        risks, present = self.environment_losses(each, batch)
        by_environment = [
            torch.autograd.grad(risks[:, g].sum(), list(leaves.values()), retain_graph=True)
            for g in range(self.task.n_environments)
        ]
        grads = {
            name: self.masked(torch.stack(parts, dim=1), present)
            for name, *parts in zip(leaves, *by_environment, strict=True)
        }
        total = masked_mean(risks, present)
        return grads, {"ce": each.mean(1).detach(), "total": total.detach()}

    def masked(self, grads: Tensor, present: Tensor) -> Tensor:
        """Gradients of the environments (R, E, …), present (R, E) → the rescaled mean where enough signs agree."""
        there = present.view(*present.shape, *([1] * (grads.dim() - 2)))
        count = there.sum(1).clamp(min=1)
        share = 0.5 + 0.5 * (grads.sign() * there).sum(1).abs() / count
        # A share is a ratio of small integers: the margin keeps τ = 2/3 from failing on its last bit.
        agree = (share >= per_run(self.runs["tau"], share) - 1e-6).to(grads.dtype)
        kept = per_run(agree.flatten(1).mean(1), agree)
        return (grads * there).sum(1) / count * agree / kept.clamp(min=SMALLEST_SHARE)
