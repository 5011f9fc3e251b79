"""IRM: invariant risk minimisation (IRMv1).

    L = CE + λ Σ_g ( d/dw ℓ_g(w·z) at w = 1 )²        λ = 1 for the first `irm_anneal` steps

One scaling of the logits must be optimal in every environment at once; a predictor that leans on a cue whose strength
differs between environments fails that. The derivative has a closed form (`objectives.irm_penalty`).
A training shorter than `irm_anneal` steps never raises the penalty: DomainBed's range is meant for 5,000 steps.
"""

from typing import ClassVar

from bayescal import objectives
from bayescal.methods.base import Batch, Params, Terms
from bayescal.methods.visual.annealing import AnnealedMethod
from bayescal.methods.visual.base import VISUAL
from bayescal.space import Space, log10_uniform, number


class IRM(AnnealedMethod):
    name = "irm"
    title = "IRM"
    learns = "a three-layer network on image features"
    cost = "one pass of the network"
    citation = "Arjovsky et al., Invariant Risk Minimization, arXiv:1907.02893, 2019"
    penalty = "irm_lambda"
    anneal = "irm_anneal"
    space: ClassVar[Space] = {
        **VISUAL,
        "irm_lambda": number(100.0, log10_uniform(-1, 5)),
        "irm_anneal": number(100, log10_uniform(0, 4, whole=True)),
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.network.classify(params, self.network.features(params, batch.features))
        ce = objectives.cross_entropy(logits, batch.labels)
        irm = objectives.irm_penalty(logits, batch.labels, batch.environments, self.task.n_environments)
        return {"ce": ce, "irm": irm, "total": ce + self.weight(batch.step) * irm}
