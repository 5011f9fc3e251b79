"""GroupDRO: distributionally robust optimisation over environments.

    q_g ← q_g exp(η ℓ_g),  q ← q / Σ q,      L = Σ_g q_g ℓ_g

The weights follow the environments that are worst at present (exponentiated gradient ascent), so the network is
trained for the worst case and not for the average. q is part of the parameters: it is saved and continued.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods.contract import Batch, Params, Samples, Terms
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, log10_uniform, number


class GroupDRO(VisualMethod):
    name = "groupdro"
    title = "GroupDRO"
    learns = "a three-layer network on image features, under a weight per environment"
    cost = "one pass of the network"
    citation = "Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020"
    frozen = ("q",)
    space: ClassVar[Space] = {**VISUAL, "eta": number(1e-2, log10_uniform(-3, -1), drawn_as="groupdro_eta")}

    def init(self, train: Samples) -> Params:
        n = self.task.n_environments
        q = torch.full((len(self.runs), n), 1.0 / n, device=self.task.device)
        return {**super().init(train), "q": q}

    def loss(self, params: Params, batch: Batch) -> Terms:
        each = self.sample_losses(params, batch)
        risks, present = self.environment_losses(each, batch)
        q = self.ascend(params["q"], risks.detach() * present)
        # The step that follows continues from these weights: they are the state of the ascent.
        params["q"].copy_(q)
        return {"ce": each.mean(1), "worst": risks.max(1).values, "total": (q * risks).sum(1)}

    def ascend(self, q: Tensor, risks: Tensor) -> Tensor:
        """One step of the ascent, (R, E); an absent environment has risk 0 and only takes part in the normalisation."""
        moved = (q.log() + self.runs["eta"][:, None] * risks).softmax(1)
        return torch.where(moved.isfinite().all(1, keepdim=True), moved, q)
