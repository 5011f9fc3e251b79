"""Few-shot image classifiers that hold up in environments they have never seen, and say when they are unsure.

Names are resolved on first use, so that `import bayescal` costs milliseconds and pulls in neither torch
nor any of the heavier parts.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "FewShotClassifier": "bayescal.classifier",
    "load_backbone": "bayescal.backbones",
    "Manifest": "bayescal.data",
    "few_shot_split": "bayescal.data",
    "FeatureBank": "bayescal.features",
    "PromptTree": "bayescal.prompts",
    "BayescalError": "bayescal.errors",
    "BayescalWarning": "bayescal.errors",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from bayescal.backbones import load_backbone
    from bayescal.classifier import FewShotClassifier
    from bayescal.data import Manifest, few_shot_split
    from bayescal.errors import BayescalError, BayescalWarning
    from bayescal.features import FeatureBank
    from bayescal.prompts import PromptTree


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'bayescal' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
