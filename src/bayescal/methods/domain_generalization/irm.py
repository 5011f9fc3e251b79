"""IRM: invariant risk minimisation (IRMv1).

    L = CE + λ Σ_g ( d/dw ℓ_g(w·z) at w = 1 )²        λ = 1 for the first `anneal_share` of the steps

One scaling of the logits must be optimal in every environment at once; a predictor that leans on a cue whose strength
differs between environments fails that. The derivative has a closed form (`losses.irm_penalty`).
"""

from typing import ClassVar

from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization._annealing import ANNEAL_SHARE, AnnealedMethod
from bayescal.methods.domain_generalization.base import VISUAL
from bayescal.methods.hyperparameters import Space, log10_uniform, number


class IRM(AnnealedMethod):
    name = "irm"
    title = "IRM"
    learns = "a three-layer network on image features"
    cost = "one pass of the network"
    citation = "Arjovsky et al., Invariant Risk Minimization, arXiv:1907.02893, 2019"
    penalty = "lambda_irm"
    space: ClassVar[Space] = {
        **VISUAL,
        "lambda_irm": number(100.0, log10_uniform(-1, 5), drawn_as="irm_lambda"),
        "anneal_share": ANNEAL_SHARE,
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.network.classify(params, self.network.features(params, batch.features))
        ce = losses.cross_entropy(logits, batch.labels)
        irm = losses.irm_penalty(logits, batch.labels, batch.environments, self.task.n_environments)
        return {"ce": ce, "irm": irm, "total": ce + self.weight(batch.step) * irm}
