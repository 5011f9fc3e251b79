"""A timm model as a `Network`: the domain-generalisation algorithms train it as they train the MLP, with R = 1.

The parameters are the timm model's own under "body.", with a leading dimension of one, and a linear head. Buffers
(the running statistics of batch normalisation) stand beside them: no gradient touches them, every training pass
updates them in place, and they are saved, continued and chosen together with the weights they belong to.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayescal.engine.params import Params
from bayescal.errors import MethodError
from bayescal.methods.domain_generalization.network import linear, linear_init

if TYPE_CHECKING:
    from bayescal.methods.domain_generalization.base import VisualMethod

BODY = "body."
HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class TimmNetwork:
    """Pixels → features → class logits.

    `training` says whether batch normalisation uses the batch (and updates its statistics) or the running statistics;
    the two are two objects that share one module. Each training pass counts: MLDG's second one at the moved
    parameters too. With `precision`, the body computes in that type and hands float32 on, so that heads, losses and
    penalties are never rounded.
    """

    module: nn.Module  # the structure and the starting point; its own tensors are never trained
    n_features: int
    n_classes: int
    precision: torch.dtype = torch.float32
    training: bool = True
    head: tuple[str, ...] = HEAD
    frozen: tuple[str, ...] = field(init=False)  # names of the buffers

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen", tuple(f"{BODY}{name}" for name, _ in self.module.named_buffers()))

    def evaluating(self) -> "TimmNetwork":
        """The same network for prediction."""
        return replace(self, training=False)

    def init(self, seeds: Tensor) -> Params:
        """The module's weights and a random head, (1, …) each; seeds (1,)."""
        if len(seeds) != 1:
            raise MethodError(f"an image model is trained one run at a time; found a stack of {len(seeds)} runs")
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        body = {f"{BODY}{name}": value.detach().to(seeds.device, copy=True)[None] for name, value in tensors}
        return body | linear_init(seeds, "head", self.n_features, self.n_classes)

    def representation(self, params: Params, x: Tensor) -> Tensor:
        """Pixels (N, 3, H, W) or (1, N, 3, H, W) → (1, N, F) float32."""
        if x.dim() == 5:
            x = x.squeeze(0)
        on_gpu = x.device.type == "cuda"
        x = x.contiguous(memory_format=torch.channels_last) if on_gpu else x  # what tensor cores want
        # Views: what batch normalisation writes into its statistics is written into `params`.
        body = {name.removeprefix(BODY): value[0] for name, value in params.items() if name.startswith(BODY)}
        self.module.train(self.training)
        reduced = self.precision != torch.float32
        with torch.autocast(x.device.type, self.precision) if reduced else nullcontext():
            h = functional_call(self.module, body, (x,))
        return h.float()[None]

    def hidden(self, params: Params, representation: Tensor) -> Tensor:
        return representation

    def features(self, params: Params, x: Tensor) -> Tensor:
        return self.hidden(params, self.representation(params, x))

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return linear(params, "head", h)


@dataclass(frozen=True)
class HeadNetwork:
    """What is left of a trained network once its images are features: (N, F) or (1, N, F) → logits."""

    n_features: int
    n_classes: int
    head: tuple[str, ...] = HEAD
    frozen: tuple[str, ...] = ()

    def init(self, seeds: Tensor) -> Params:
        return linear_init(seeds, "head", self.n_features, self.n_classes)

    def representation(self, params: Params, x: Tensor) -> Tensor:
        return x if x.dim() == 3 else x[None]

    def hidden(self, params: Params, representation: Tensor) -> Tensor:
        return representation

    def features(self, params: Params, x: Tensor) -> Tensor:
        return self.representation(params, x)

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return linear(params, "head", h)


def evaluating(method: "VisualMethod") -> "VisualMethod":
    """The same algorithm, with its network set to prediction."""
    network = method.network
    return type(method)(method.task, method.runs, network.evaluating() if isinstance(network, TimmNetwork) else network)
