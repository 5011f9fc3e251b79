"""RSC: representation self-challenging. Take away what the network relies on most, and let it find something else.

    g = ∂z_y/∂h,     m_j = 0 for the top p of a sample's features by g,     L = CE(classify(h ⊙ m), y)

Only the top b of the samples are challenged, those whose confidence in the right class drops most under the mask;
the others keep all their features. Prediction mutes nothing.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.engine.params import per_run
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization._environments import detached
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, number, uniform


class RSC(VisualMethod):
    name = "rsc"
    title = "RSC"
    learns = "a three-layer network on image features"
    cost = "one pass of the network, three of its head"
    citation = "Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020"
    space: ClassVar[Space] = {
        **VISUAL,
        "muted_features": number(1 / 3, uniform(0, 0.5), drawn_as="rsc_features"),  # p: share of the features
        "challenged_samples": number(1 / 3, uniform(0, 0.5), drawn_as="rsc_samples"),  # b: share of the samples
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        h = self.network.features(params, batch.features)
        keep = self.mask(params, h.detach(), batch.labels)
        ce = losses.cross_entropy(self.network.classify(params, h * keep), batch.labels)
        return {"ce": ce, "total": ce}

    def mask(self, params: Params, h: Tensor, labels: Tensor) -> Tensor:
        """One where a feature is kept: h (R, B, F), labels (R, B) → (R, B, F)."""
        head = detached(params)
        right = labels[..., None]
        with torch.enable_grad():
            h = h.requires_grad_()
            logits = self.network.classify(head, h)
            (gradient,) = torch.autograd.grad(logits.gather(-1, right).sum(), h)
        with torch.no_grad():
            muted = top_share(gradient, self.runs["muted_features"])
            after = self.network.classify(head, h * ~muted).softmax(-1).gather(-1, right)[..., 0]
            drop = logits.softmax(-1).gather(-1, right)[..., 0] - after  # (R, B)
            challenged = top_share(drop, self.runs["challenged_samples"])
            return (~(muted & challenged[..., None])).to(h.dtype)


def top_share(values: Tensor, share: Tensor) -> Tensor:
    """Whether an entry is among the largest `share` (R,) of the last dimension: (R, …) bool."""
    rank = values.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank < per_run((share * values.shape[-1]).round(), values)
