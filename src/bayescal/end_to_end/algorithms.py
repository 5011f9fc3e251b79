"""Which algorithms train end to end, and the hyper-parameters that all of them have there."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.errors import MethodError
from bayescal.methods import find_method, outside_names
from bayescal.methods.contract import Method
from bayescal.methods.hyperparameters import Space, choice, log10_uniform, number, setting
from bayescal.methods.registry import BUILT_IN
from bayescal.util.suggest import did_you_mean

if TYPE_CHECKING:
    from bayescal.methods.domain_generalization.base import VisualMethod

# Instead of what the algorithms use on frozen features. The learning rate depends on where the weights start.
COMMON: Space = {
    "learning_rate": number(lambda defaults: defaults.learning_rate, log10_uniform(-5, -3.5)),
    "weight_decay": number(0.0, log10_uniform(-6, -2)),
    "epochs": setting(30),
    # Images per step over all environments, in equal shares: 32 each of three, DomainBed's batch.
    "batch_size": setting(96, choice(48, 96, 144)),
    "image_size": setting(0),  # pixels per side; 0: what the timm model was made for
    "precision": setting("auto"),  # auto, float32 or bfloat16; auto: bfloat16 on GPUs that have it
    "augment": setting(True),  # DomainBed's augmentation
}
SCRATCH = TrainingDefaults(learning_rate=1e-3)  # DomainBed's rate for networks that start from random weights
PRETRAINED = TrainingDefaults(learning_rate=5e-5)  # and for those that start from ImageNet


@dataclass(frozen=True)
class ImageTask:
    """What is to be told apart, for algorithms on pixels: the part of `Task` that does not need a text tower."""

    classes: tuple[str, ...]
    environments: tuple[tuple[str, ...], ...]  # of the training environments; one tuple, for the one run
    device: torch.device
    dim: int  # width of what the model's body says of an image

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_environments(self) -> int:
        return len(self.environments[0])


def algorithm_names() -> list[str]:
    """The package's methods that train an image model."""
    return [name for name in BUILT_IN if find_method(name).end_to_end]


def get_algorithm(method: str | type[Method]) -> "type[VisualMethod]":
    """The class of a method that can train an image model; any other is answered with those that can."""
    if isinstance(method, str) and ":" not in method and method not in (*BUILT_IN, *outside_names()):
        known = algorithm_names()
        hint = did_you_mean(method, known)
        raise MethodError(f"end to end: the method {method!r} is unknown.{hint} End to end are: {', '.join(known)}")
    found = find_method(method)
    if not found.end_to_end:
        raise MethodError(
            f"end to end: the method {found.name!r} does not train an image model. End to end are: "
            f"{', '.join(algorithm_names())}"
        )
    return cast("type[VisualMethod]", found)


def space_of(algorithm: "type[VisualMethod]") -> Space:
    return {**algorithm.space, **COMMON}
