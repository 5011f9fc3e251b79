"""What a hidden layer does with its sums: the activations that a network can be set to."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayescal.errors import MethodError


class Activation(NamedTuple):
    function: Callable[[Tensor], Tensor]
    gain: float  # variance of the weights in front of it, times their number: 2 for ReLU (He et al. 2015)


ACTIVATIONS = {"relu": Activation(torch.relu, 2.0), "sigmoid": Activation(torch.sigmoid, 1.0)}


def get_activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise MethodError(f"activation {name!r}: expected {' or '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
