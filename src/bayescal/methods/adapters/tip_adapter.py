"""Tip-Adapter: a cache of the training images, asked beside the zero-shot classifier. Nothing is trained.

    z(x) = s · cos(f, T)  +  α · exp(−β (1 − f Kᵀ)) V

Keys K (n, d) are the normalised training features, values V (n, C) their labels as one-hot rows. α (trust in the
cache) and β (sharpness) start at 1 and 5 and are searched on validation images, never on test images: 200 values of β
and 20 of α up to the search scale. Accuracy decides, the start wins ties, then the smaller β, then the smaller α.

Tip-Adapter-F makes the keys learnable (20 epochs of AdamW at α = 1, β = 5; on mini 3 and 2); its epoch is the one with
the best validation accuracy (`best_params`), and the search follows (on mini up to α = 5).
"""

import math
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine.optim import AdamW, Optimizer
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Method, Params, Samples, Terms
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.text.zero_shot import ZeroShot

SMALLEST = 0.1  # first value of both searches; 0 would switch the cache off
LARGEST = 1e6  # that either may try: far above it, float32 has no number for a value
SEARCH_MEMORY = 1 << 24  # similarities that the search holds at once

TIP: Space = {
    "alpha": number(1.0),
    "beta": number(5.0),
    "beta_max": setting(20.0),  # the search goes from 0.1 to here
    "beta_steps": setting(200),
    "alpha_max": setting(20.0),
    "alpha_steps": setting(20),
    "template": setting(lambda b: b.template),
}


class TipAdapter(Method):
    name = "tip-adapter"
    title = "Tip-Adapter"
    learns = "nothing by gradient: a cache of the training features; two numbers from validation images"
    cost = "none; the search tries 4,000 settings on the validation images"
    citation = "Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022"
    trained_by_gradient = False
    uses_text = True
    keeps_images = True
    frozen = ("keys", "values", "alpha", "beta")
    predict_chunk = 4096  # every image is compared with every key
    space: ClassVar[Space] = TIP

    @cached_property
    def zero_shot(self) -> Tensor:
        """The zero-shot classifier: (R, C, D)."""
        return ZeroShot(self.task, self.runs).prepare({}, 0)[:, 0]

    def init(self, train: Samples) -> Params:
        return {
            "keys": F.normalize(train.features, dim=-1),  # (R, n, D)
            "values": F.one_hot(train.labels, self.task.n_classes).to(train.features) * train.mask[..., None],
            "alpha": self.runs["alpha"].clone(),  # (R,)
            "beta": self.runs["beta"].clone(),
        }

    def loss(self, params: Params, batch: Batch) -> Terms:
        raise MethodError("Tip-Adapter has nothing to train; tip-adapter-f trains the keys")

    def prepare(self, params: Params, samples: int) -> Params:
        known = params["values"].shape[-1]
        if known != self.task.n_classes:
            raise MethodError(f"{self.title} knows the {known} classes it was trained with, not {self.task.n_classes}")
        return {**params, "zero_shot": self.zero_shot, "labels": labels_of(params["values"])}

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        zero_shot, affinity = self.parts(prepared, features)
        # First whether it is traced: a graph for any number of images may not ask for their number.
        if not torch.compiler.is_compiling() and affinity.shape[1] == 1 and _adds_by_label(prepared):
            cache = cache_logits_by_label(affinity, prepared["labels"], prepared["beta"], zero_shot.shape[-1])
        else:
            cache = cache_logits(affinity, prepared["values"], prepared["beta"])
        return (zero_shot + prepared["alpha"][:, None, None] * cache)[:, None]

    def parts(self, prepared: Params, features: Tensor) -> tuple[Tensor, Tensor]:
        """Zero-shot logits (R, N, C) and similarity to every key (R, N, n) of images (N, D) or (R, N, D)."""
        zero_shot = losses.weighted_logits(features, prepared["zero_shot"])
        return zero_shot, losses.weighted_logits(features, prepared["keys"])

    @torch.no_grad()
    def finish(self, params: Params, val: Samples) -> Params:
        zero_shot, affinity = self.parts({**params, "zero_shot": self.zero_shot}, val.features)
        at_once = max(1, SEARCH_MEMORY // max(1, affinity[0].numel()))
        chosen = [
            search(
                zero_shot[at : at + at_once],
                affinity[at : at + at_once],
                {name: value[at : at + at_once] for name, value in params.items()},
                val.labels[at : at + at_once],
                val.mask[at : at + at_once],
                (self.grid("alpha"), self.grid("beta")),
            )
            for at in range(0, len(self.runs), at_once)
        ]
        alpha, beta = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        return {**params, "alpha": alpha, "beta": beta}

    def grid(self, name: str) -> list[float]:
        """The values of α or β that are tried."""
        top, steps = self.runs[f"{name}_max"], self.runs[f"{name}_steps"]
        if steps < 1 or top > LARGEST:
            raise MethodError(
                f"{self.title}: expected {name}_steps of 1 or more and {name}_max of at most {LARGEST:g}, "
                f"found {steps} and {top:g}"
            )
        return [SMALLEST + i * (top - SMALLEST) / steps for i in range(steps)]


class TipAdapterF(TipAdapter):
    name = "tip-adapter-f"
    title = "Tip-Adapter-F"
    learns = "the keys of a cache of the training features; two numbers from validation images"
    cost = "one product of the batch with the keys"
    trained_by_gradient = True
    frozen = ("values", "alpha", "beta")
    optimizer: Optimizer = AdamW(eps=1e-4)

    @staticmethod
    def schedule(base: Tensor, epoch: int, epochs: int) -> Tensor:
        """Half a cosine without warm-up."""
        return base * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))

    space: ClassVar[Space] = {
        "learning_rate": number(1e-3),
        "weight_decay": number(0.01),
        "epochs": setting(20),
        "batch_size": setting(256),
        **TIP,
        "alpha": number(lambda b: b.cache_alpha),
        "beta": number(lambda b: b.cache_beta),
        "alpha_max": setting(lambda b: b.cache_alpha_max),
    }

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.logits({**params, "zero_shot": self.zero_shot}, batch.features)
        ce = losses.cross_entropy(logits[:, 0], batch.labels)
        return {"ce": ce, "total": ce}


def cache_logits(affinity: Tensor, values: Tensor, beta: Tensor) -> Tensor:
    """exp(−β(1 − A)) V: affinity (R, N, n), values (R, n, C), beta (R,) → (R, N, C)."""
    return torch.exp(-beta[:, None, None] * (1 - affinity)) @ values


def labels_of(values: Tensor) -> Tensor:
    """Which class each key is of, from one-hot rows (R, n, C) → (R, n); C for padding, whose row is zero."""
    return torch.where(values.amax(-1) > 0, values.argmax(-1), values.shape[-1])


def cache_logits_by_label(affinity: Tensor, labels: Tensor, beta: Tensor, n_classes: int) -> Tensor:
    """`cache_logits` of one image (R, 1, n), from each key's label (R, n): V is not read, which takes as long as K."""
    near = torch.exp(-beta[:, None] * (1 - affinity[:, 0]))
    return near.new_zeros(len(near), n_classes + 1).scatter_add_(1, labels, near)[:, None, :n_classes]


def _adds_by_label(prepared: Params) -> bool:
    """Models that were saved without labels have none; on a GPU a sum by label has no order of its own."""
    return "labels" in prepared and prepared["labels"].device.type == "cpu"


def search(
    zero_shot: Tensor,
    affinity: Tensor,
    params: Params,
    labels: Tensor,
    mask: Tensor,
    grid: tuple[list[float], list[float]],
) -> tuple[Tensor, Tensor]:
    """α and β (R,) with the most validation images right; runs may have different numbers of images.

    zero_shot (R, N, C), affinity (R, N, n), labels and mask (R, N); grid: the α and the β that are tried.
    """
    values, alpha, beta = params["values"], params["alpha"], params["beta"]

    def right(alpha: Tensor, cache: Tensor) -> Tensor:
        """Images that are right: alpha (A, R), cache (R, N, C) → (A, R)."""
        guess = (zero_shot + alpha[..., None, None] * cache).argmax(-1)
        return ((guess == labels) & mask).sum(-1)

    best = right(alpha[None], cache_logits(affinity, values, beta))[0]
    tried = torch.tensor(grid[0], device=alpha.device)[:, None].expand(-1, len(alpha))  # (A, R)
    for value in grid[1]:
        sharpness = torch.full_like(beta, value)
        hits = right(tried, cache_logits(affinity, values, sharpness))
        top = hits.max(0).values
        first = (hits == top).int().argmax(0)  # the smallest α among the best
        better = top > best
        best = torch.where(better, top, best)
        alpha = torch.where(better, tried.gather(0, first[None])[0], alpha)
        beta = torch.where(better, sharpness, beta)
    return alpha, beta
