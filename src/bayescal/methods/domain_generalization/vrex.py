"""VREx: variance risk extrapolation.

    L = CE + λ Var_g(ℓ_g)        λ = 1 for the first `anneal_share` of the steps

Equal risks in the training environments are the condition under which extrapolating their differences changes
nothing. The variance is the population variance over the environments in the batch.
"""

from typing import ClassVar

from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization._annealing import ANNEAL_SHARE, AnnealedMethod
from bayescal.methods.domain_generalization._environments import masked_mean
from bayescal.methods.domain_generalization.base import VISUAL
from bayescal.methods.hyperparameters import Space, log10_uniform, number


class VREx(AnnealedMethod):
    name = "vrex"
    title = "VREx"
    learns = "a three-layer network on image features"
    cost = "one pass of the network"
    citation = "Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation, ICML 2021"
    penalty = "lambda_variance"
    space: ClassVar[Space] = {
        **VISUAL,
        "lambda_variance": number(10.0, log10_uniform(-1, 5), drawn_as="vrex_beta"),
        "anneal_share": ANNEAL_SHARE,
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        each = self.sample_losses(params, batch)
        risks, present = self.environment_losses(each, batch)
        variance = masked_mean((risks - masked_mean(risks, present)[:, None]).square(), present)
        ce = each.mean(1)
        return {"ce": ce, "variance": variance, "total": ce + self.weight(batch.step) * variance}
