"""VREx: variance risk extrapolation.

    L = CE + β Var_g(ℓ_g)        β = 1 for the first `vrex_anneal` steps

Equal risks in the training environments are the condition under which extrapolating their differences changes
nothing. The variance is the population variance over the environments in the batch.
A training shorter than `vrex_anneal` steps never raises the penalty: DomainBed's range is meant for 5,000 steps.
"""

from typing import ClassVar

from bayescal.methods.base import Batch, Params, Terms
from bayescal.methods.visual.annealing import AnnealedMethod
from bayescal.methods.visual.base import VISUAL
from bayescal.methods.visual.environments import masked_mean
from bayescal.space import Space, log10_uniform, number


class VREx(AnnealedMethod):
    name = "vrex"
    title = "VREx"
    learns = "a three-layer network on image features"
    cost = "one pass of the network"
    citation = "Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation, ICML 2021"
    penalty = "vrex_beta"
    anneal = "vrex_anneal"
    space: ClassVar[Space] = {
        **VISUAL,
        "vrex_beta": number(10.0, log10_uniform(-1, 5)),
        "vrex_anneal": number(100, log10_uniform(0, 4, whole=True)),
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        losses = self.losses(params, batch)
        risks, present = self.environment_losses(losses, batch)
        variance = masked_mean((risks - masked_mean(risks, present)[:, None]).square(), present)
        ce = losses.mean(1)
        return {"ce": ce, "variance": variance, "total": ce + self.weight(batch.step) * variance}
