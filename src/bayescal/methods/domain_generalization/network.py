"""The visual network: three layers d → 256 → 64 → C on frozen image features, R of them side by side.

    h = a(W2 a(W1 x + b1) + b2),  z = W3 h + b3,  a = ReLU unless a method says otherwise

Algorithms use the `Network` protocol alone, so that any model with features and a head can take the MLP's place.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine import rng
from bayescal.engine.params import Params
from bayescal.methods.activations import get_activation

WIDTHS = (256, 64)


class Network(Protocol):
    """Images → features → class logits, for R independent sets of parameters."""

    @property
    def n_features(self) -> int: ...

    @property
    def n_classes(self) -> int: ...

    @property
    def head(self) -> tuple[str, ...]:
        """Names of the parameters that `classify` reads and `features` does not."""
        ...

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that no gradient touches (running statistics)."""
        ...

    def init(self, seeds: Tensor) -> Params:
        """Initial parameters (R, …) from the runs' seeds (R,)."""
        ...

    def representation(self, params: Params, x: Tensor) -> Tensor:
        """What the image model says of an image, (R, N, D): frozen features, or those of a model being trained."""
        ...

    def hidden(self, params: Params, representation: Tensor) -> Tensor:
        """From the representation to what the head reads: (R, N, D) → (R, N, F)."""
        ...

    def features(self, params: Params, x: Tensor) -> Tensor:
        """`hidden` of `representation`; inputs are the same for all runs (N, …) or one set per run (R, N, …)."""
        ...

    def classify(self, params: Params, h: Tensor) -> Tensor:
        """(R, N, F) → (R, N, C)."""
        ...


@dataclass(frozen=True)
class MLP:
    """The paper's conventional visual model.

    Features are scaled to length √d before the first layer. Backbones differ in the length of their features (1 to
    50 and more); with unit mean square per coordinate, He initialisation keeps its meaning and one learning rate
    suits all of them. The direction is kept, and it is all that cosine-based methods use.
    """

    dim: int
    n_classes: int
    head: tuple[str, ...] = ("head.weight", "head.bias")
    frozen: tuple[str, ...] = ()
    activation: str = "relu"  # of the hidden layers: see `methods/activations.py`

    @property
    def n_features(self) -> int:
        return WIDTHS[-1]

    def init(self, seeds: Tensor) -> Params:
        params: Params = {}
        fan_in, gain = self.dim, get_activation(self.activation).gain
        for i, width in enumerate(WIDTHS, start=1):
            params |= linear_init(seeds, f"hidden{i}", fan_in, width, gain)
            fan_in = width
        return params | linear_init(seeds, "head", fan_in, self.n_classes)

    def representation(self, params: Params, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * math.sqrt(self.dim)

    def hidden(self, params: Params, representation: Tensor) -> Tensor:
        h, activate = representation, get_activation(self.activation).function
        for i in range(1, len(WIDTHS) + 1):
            h = activate(linear(params, f"hidden{i}", h))
        return h

    def features(self, params: Params, x: Tensor) -> Tensor:
        return self.hidden(params, self.representation(params, x))

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return linear(params, "head", h)


@dataclass(frozen=True)
class Heads:
    """K linear classifiers on the same features, for algorithms that need more than the network's own."""

    name: str
    count: int
    n_in: int
    n_out: int

    def init(self, seeds: Tensor) -> Params:
        parts = [linear_init(seeds, f"{self.name}.{k}", self.n_in, self.n_out) for k in range(self.count)]
        return {name: value for part in parts for name, value in part.items()}

    def __call__(self, params: Params, h: Tensor) -> Tensor:
        """(R, B, F) → (R, K, B, n_out)."""
        return torch.stack([linear(params, f"{self.name}.{k}", h) for k in range(self.count)], dim=1)

    def names(self, k: int) -> tuple[str, str]:
        return f"{self.name}.{k}.weight", f"{self.name}.{k}.bias"

    def own(self, params: Params) -> Params:
        """The heads' parameters out of all of them."""
        return {name: value for name, value in params.items() if name.startswith(f"{self.name}.")}


def linear_init(seeds: Tensor, name: str, n_in: int, n_out: int, gain: float = 1.0) -> Params:
    """Weights N(0, gain / n_in) — gain 2 in front of a ReLU (He et al. 2015) — and zero biases."""
    weight = math.sqrt(gain / n_in) * rng.normal(seeds, f"visual/{name}", 0, (n_in, n_out))
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros_like(weight[:, 0])}


def linear(params: Params, name: str, x: Tensor) -> Tensor:
    """x (N, n_in) or (R, N, n_in) → (R, N, n_out)."""
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"][:, None]
