"""Stable learning (StableNet): weigh the samples so that the features become independent, then train on the weights.

    w = argmin  1/F Σ_{i≠j} mean_{q,q'} Cov_w(u_q(f_i), u_q'(f_j))²  +  λ·B Σ_n w_n²,      w on the simplex
    L = Σ_n w_n ℓ_n

u_q(f) = √2 cos(ω_q f + φ_q) are random Fourier features, so that vanishing covariances mean independence and not only
decorrelation. A feature that merely accompanies the relevant ones then explains nothing, and the network has no
reason to use it; no environment labels are needed. w starts uniform in every batch and takes `weight_steps` Adam steps
on its logits; uniform w gives ERM.

f is the image representation: here the frozen image features. (Hidden units of the MLP will not do: they are many
functions of few inputs, and no weighting makes those independent.) A wide representation is sampled: `sampled_features`
of its coordinates in each step. StableNet also keeps a running memory of earlier batches, because its batches are a
small part of its data; a few-shot training set fits in one batch of StableNet's size, 128, so the memory is left out.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.optim import AdamW
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Step, Terms
from bayescal.methods.domain_generalization._environments import uniform
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.hyperparameters import Space, log10_uniform, number, setting


class StableLearning(VisualMethod):
    name = "stable"
    title = "stable learning"
    learns = "a three-layer network on image features, under sample weights learned in every batch"
    cost = "one pass of the network, and weight_steps covariances of F·Q functions of the features"
    citation = "Zhang et al., Deep Stable Learning for Out-Of-Distribution Generalization, CVPR 2021"
    space: ClassVar[Space] = {
        **VISUAL,
        "epochs": setting(100),  # one step each: the batch is the training set
        "batch_size": setting(128),
        "weight_rate": number(0.1, log10_uniform(-2, 0), drawn_as="stable_rate"),
        "lambda_spread": number(1e-3, log10_uniform(-4, -1), drawn_as="stable_spread"),  # the price of unequal weights
        "weight_steps": setting(20),
        "sampled_features": setting(32, at_least=1),
        "fourier_functions": setting(5, at_least=1),  # Q, the random functions of each feature
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        # One pass: the representation of an image model being trained is the costly part.
        representation = self.network.representation(params, batch.features)
        logits = self.network.classify(params, self.network.hidden(params, representation))
        each = losses.sample_cross_entropy(logits, batch.labels)
        functions = self.functions(representation.detach(), batch.step)
        weights = self.weights(functions)
        terms = {"ce": each.mean(1), "dependence": dependence(functions, weights)}
        return {**terms, "total": (weights * each).sum(1)}

    def functions(self, f: Tensor, step: Step) -> Tensor:
        """u_q of some features, drawn for this step: (R, B, D) → (R, B, F, Q)."""
        seeds, count = self.runs.seeds, self.runs["fourier_functions"]
        some = rng.permutations(seeds, "stable/features", step, f.shape[-1])[:, : self.runs["sampled_features"]]
        f = f.gather(2, some[:, None].expand(-1, f.shape[1], -1))
        # Standardised, so that frequencies of N(0, 1) resolve every feature alike; a dead feature stays constant.
        f = (f - f.mean(1, keepdim=True)) / (f.std(1, keepdim=True, correction=0) + 1e-6)
        shape = (1, f.shape[-1], count)
        frequency = rng.normal(seeds, "stable/frequency", step, shape)
        phase = 2 * math.pi * uniform(seeds, "stable/phase", step, shape)
        return math.sqrt(2) * torch.cos(f[..., None] * frequency + phase)

    def weights(self, functions: Tensor) -> Tensor:
        """Sample weights that make the functions of different features uncorrelated: (R, B, F, Q) → (R, B)."""
        size = functions.shape[1]
        logits = {"logits": torch.zeros(functions.shape[:2], device=functions.device, dtype=functions.dtype)}
        inner = AdamW()
        state = inner.init(logits)
        for _ in range(self.runs["weight_steps"]):
            with torch.enable_grad():
                leaf = logits["logits"].detach().requires_grad_()
                weights = leaf.softmax(1)
                # B Σ w² is 1 for equal weights and B for a single sample, which has no covariance to speak of.
                cost = dependence(functions, weights) + self.runs["lambda_spread"] * size * weights.square().sum(1)
                (gradient,) = torch.autograd.grad(cost.sum(), leaf)
            inner.step(logits, {"logits": gradient}, state, self.runs["weight_rate"], {})
        return logits["logits"].softmax(1)


def dependence(functions: Tensor, weights: Tensor) -> Tensor:
    """1/F Σ_{i≠j} mean_{q,q'} Cov_w(u_q(f_i), u_q'(f_j))²: functions (R, B, F, Q), weights (R, B) → (R,)."""
    n_features, n_functions = functions.shape[2:]
    flat, w = functions.flatten(2), weights[..., None]
    centred = flat - (w * flat).sum(1, keepdim=True)
    squares = ((w * centred).transpose(1, 2) @ centred).square()  # (R, FQ, FQ)
    own = squares.unflatten(2, (n_features, n_functions)).unflatten(1, (n_features, n_functions))
    own = own.diagonal(dim1=1, dim2=3).sum((1, 2, 3))
    return (squares.sum((1, 2)) - own) / (n_features * n_functions**2)
