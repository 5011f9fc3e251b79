"""MMD: make the features of all environments look alike.

    L = CE + λ · mean over pairs (g, g') of MMD²(h_g, h_g')
    MMD²(X, Y) = mean k(x, x') + mean k(y, y') − 2 mean k(x, y),   k(a, b) = Σ_w exp(−w‖a − b‖²)

The kernel sums DomainBed's seven bandwidths w = 10⁻³ … 10³; means run over all pairs, a sample with itself included.
(The paper's adversarial auto-encoder around it is left out, as in DomainBed.)
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Terms
from bayescal.methods.domain_generalization._environments import membership
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, log10_uniform, number

BANDWIDTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class MMD(VisualMethod):
    name = "mmd"
    title = "MMD"
    learns = "a three-layer network on image features"
    cost = "one pass of the network, and a kernel of batch × batch"
    citation = "Li et al., Domain Generalization with Adversarial Feature Learning, CVPR 2018"
    space: ClassVar[Space] = {**VISUAL, "lambda_mmd": number(1.0, log10_uniform(-1, 1), drawn_as="mmd_gamma")}

    def loss(self, params: Params, batch: Batch) -> Terms:
        h = self.network.features(params, batch.features)
        ce = losses.cross_entropy(self.network.classify(params, h), batch.labels)
        mmd = environment_mmd(h, batch.environments, self.task.n_environments)
        return {"ce": ce, "mmd": mmd, "total": ce + self.runs["lambda_mmd"] * mmd}


def environment_mmd(h: Tensor, environments: Tensor, n_environments: int) -> Tensor:
    """Mean MMD² over the pairs of environments in the batch: h (R, B, F), environments (R, B) → (R,)."""
    member = membership(environments, n_environments, h)  # (R, E, B)
    count = member.sum(-1)
    average = member / count.clamp(min=1)[..., None]
    means = average @ gaussian_kernel(h) @ average.transpose(1, 2)  # (R, E, E): mean kernel between environments
    own = means.diagonal(dim1=1, dim2=2)
    mmd = own[:, :, None] + own[:, None, :] - 2 * means
    present = (count > 0).to(h.dtype)
    pairs = (present[:, :, None] * present[:, None, :]).triu(1)
    return (mmd * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)


def gaussian_kernel(h: Tensor) -> Tensor:
    """Σ_w exp(−w‖h_i − h_j‖²): (R, B, F) → (R, B, B)."""
    square = h.square().sum(-1)
    # Rounding can leave a small negative distance between equal samples.
    distance = (square[:, :, None] + square[:, None, :] - 2 * h @ h.transpose(1, 2)).clamp(min=0)
    return torch.stack([torch.exp(-w * distance) for w in BANDWIDTHS]).sum(0)
