"""Which algorithms train end to end, and the hyper-parameters that all of them have there."""

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.errors import MethodError
from bayescal.methods import PIXEL_METHODS, REGISTRY
from bayescal.space import Space, choice, log10_uniform, number, setting

if TYPE_CHECKING:
    from bayescal.methods.visual.base import VisualMethod

# The visual MLP differs from ERM in its network and recipe, and both are other ones here.
_LEFT_OUT = ("visual-mlp",)

# In the place of what the algorithms use on frozen features. The learning rate depends on where the weights start.
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
    environments: tuple[tuple[str, ...], ...]  # of the training environments; one tuple, for the one row
    device: torch.device

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_environments(self) -> int:
        return len(self.environments[0])


def algorithm_names() -> list[str]:
    visual = [name for name, place in REGISTRY.items() if place.startswith("visual.") and name not in _LEFT_OUT]
    return visual + list(PIXEL_METHODS)


def get_algorithm(name: str) -> "type[VisualMethod]":
    """The algorithm of this name; one that cannot train an image model is answered with those that can."""
    known = algorithm_names()
    if name not in known:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
        why = "does not train an image model" if name in REGISTRY else "is unknown"
        hint = f" Did you mean {near[0]!r}?" if near and name not in REGISTRY else ""
        raise MethodError(f"end to end: the method {name!r} {why}.{hint} End to end are: {', '.join(known)}")
    module, cls = {**REGISTRY, **PIXEL_METHODS}[name].rsplit(".", 1)
    return getattr(import_module(f"bayescal.methods.{module}"), cls)


def space_of(algorithm: "type[VisualMethod]") -> Space:
    return {**algorithm.space, **COMMON}
