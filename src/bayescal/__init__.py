"""Few-shot image classifiers that hold up in environments they have never seen, and say when they are unsure.

Names are resolved on first use, so that `import bayescal` costs milliseconds and pulls in neither torch
nor any of the heavier parts.
"""

import logging
from typing import TYPE_CHECKING

from bayescal.util.lazy import lazy_names

__version__ = "0.2.0"

# Silent until somebody asks: logging.basicConfig(level="INFO").
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "FewShotClassifier": "bayescal.estimator.classifier",
    "Method": "bayescal.methods.contract",
    "get_method": "bayescal.methods",
    "register_method": "bayescal.methods",
    "Problem": "bayescal.training.problem",
    "Run": "bayescal.training.runs",
    "train_runs": "bayescal.training.stack",
    "load_backbone": "bayescal.backbones",
    "Bench": "bayescal.benchmark.bench",
    "Manifest": "bayescal.data",
    "read_manifest": "bayescal.data",
    "FeatureBank": "bayescal.features",
    "BayescalError": "bayescal.errors",
    "BayescalWarning": "bayescal.errors",
}

__all__ = [
    "BayescalError",
    "BayescalWarning",
    "Bench",
    "FeatureBank",
    "FewShotClassifier",
    "Manifest",
    "Method",
    "Problem",
    "Run",
    "__version__",
    "get_method",
    "load_backbone",
    "read_manifest",
    "register_method",
    "train_runs",
]

if TYPE_CHECKING:
    from bayescal.backbones import load_backbone
    from bayescal.benchmark.bench import Bench
    from bayescal.data import Manifest, read_manifest
    from bayescal.errors import BayescalError, BayescalWarning
    from bayescal.estimator.classifier import FewShotClassifier
    from bayescal.features import FeatureBank
    from bayescal.methods import get_method, register_method
    from bayescal.methods.contract import Method
    from bayescal.training.problem import Problem
    from bayescal.training.runs import Run
    from bayescal.training.stack import train_runs


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
