"""ERM: empirical risk minimisation, the pooled mean loss of all environments.

    L = 1/B Σ_i ℓ(f(x_i), y_i)

Which environment a sample comes from is ignored. DomainBed's lesson is that little beats this reliably, which makes
it the yardstick of all other visual methods; they share its network, optimiser (Adam, constant rate) and schedule.
"""

from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization.base import VisualMethod


class ERM(VisualMethod):
    name = "erm"
    title = "ERM"
    learns = "a three-layer network on image features"
    cost = "one pass of the network"
    citation = "Vapnik, Statistical Learning Theory, 1998; Gulrajani & Lopez-Paz, In Search of Lost DG, ICLR 2021"

    def loss(self, params: Params, batch: Batch) -> Terms:
        ce = self.sample_losses(params, batch).mean(1)
        return {"ce": ce, "total": ce}
