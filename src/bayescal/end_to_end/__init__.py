"""Training a whole image model from pixels, for people with a GPU and thousands of images (docs/end-to-end.md).

The algorithms are those of `methods/domain_generalization`, unchanged: they see a `Network`, and here that network is a
timm model instead of the MLP on frozen features. Needs torch, timm, numpy, Pillow and safetensors; a progress bar needs
Rich. Importing this package lets `load` read such models; what trains them, and timm, are imported on first use.
"""

from typing import TYPE_CHECKING

from bayescal.end_to_end.loading import load_model
from bayescal.util.lazy import lazy_names

if TYPE_CHECKING:
    from bayescal.end_to_end.algorithms import algorithm_names, get_algorithm
    from bayescal.end_to_end.fit import fit_end_to_end
    from bayescal.end_to_end.predictor import EndToEndPredictor

__all__ = ["EndToEndPredictor", "algorithm_names", "fit_end_to_end", "get_algorithm", "load_model"]

_HOMES = {
    "EndToEndPredictor": "bayescal.end_to_end.predictor",
    "algorithm_names": "bayescal.end_to_end.algorithms",
    "fit_end_to_end": "bayescal.end_to_end.fit",
    "get_algorithm": "bayescal.end_to_end.algorithms",
}
__getattr__ = lazy_names(__name__, _HOMES)
