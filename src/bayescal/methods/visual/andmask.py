"""ANDMask: learn only what all environments ask for.

    g = m ⊙ mean_g ∇ℓ_g,      m_j = 1 if the component's sign agrees in at least τ of the environments

A component on which the environments disagree is a compromise that suits their average and may suit none of them.
Agreement is the share of the environments in the batch that have the more common sign, 1 being all of them. The paper
(and DomainBed, which draws its threshold from U(0.5, 1)) measures |mean sign| = 2·share − 1; U(0.75, 1) is that range.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods.base import Batch, Params, Terms
from bayescal.methods.visual.base import VISUAL, VisualMethod
from bayescal.methods.visual.environments import masked_mean
from bayescal.optim import per_row
from bayescal.space import Space, number, uniform


class ANDMask(VisualMethod):
    name = "andmask"
    title = "ANDMask"
    learns = "a three-layer network on image features"
    cost = "one pass of the network forwards, one per environment backwards"
    citation = "Parascandolo et al., Learning Explanations that are Hard to Vary, ICLR 2021"
    space: ClassVar[Space] = {**VISUAL, "andmask_tau": number(1.0, uniform(0.75, 1.0))}

    def loss(self, params: Params, batch: Batch) -> Terms:
        losses = self.losses(params, batch)
        risks, present = self.environment_losses(losses, batch)
        return {"ce": losses.mean(1), "total": masked_mean(risks, present)}

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        leaves = {name: value.detach().requires_grad_() for name, value in self.learned(params).items()}
        losses = self.losses({**params, **leaves}, batch)
        risks, present = self.environment_losses(losses, batch)
        each = [
            torch.autograd.grad(risks[:, g].sum(), list(leaves.values()), retain_graph=True)
            for g in range(self.task.n_environments)
        ]
        grads = {
            name: self.masked(torch.stack(parts, dim=1), present) for name, *parts in zip(leaves, *each, strict=True)
        }
        total = masked_mean(risks, present)
        return grads, {"ce": losses.mean(1).detach(), "total": total.detach()}

    def masked(self, grads: Tensor, present: Tensor) -> Tensor:
        """Gradients of the environments (R, E, …), present (R, E) → the mean where enough signs agree (R, …)."""
        there = present.view(*present.shape, *([1] * (grads.dim() - 2)))
        count = there.sum(1).clamp(min=1)
        positive = ((grads > 0) * there).sum(1)
        negative = ((grads < 0) * there).sum(1)
        share = torch.maximum(positive, negative) / count
        # A share is a ratio of small integers: the margin keeps τ = 2/3 from failing on its last bit.
        agree = share >= per_row(self.runs["andmask_tau"], share) - 1e-6
        return (grads * there).sum(1) / count * agree
