"""Training a whole image model from pixels, for people with a GPU and thousands of images (docs/end-to-end.md).

The algorithms are those of `methods/domain_generalization`, unchanged: they see a `Network`, and here that network is a
timm model instead of the MLP on frozen features. Needs torch, timm, numpy, Pillow and safetensors; a progress bar needs
Rich.
"""

from bayescal.end_to_end.algorithms import algorithm_names, get_algorithm
from bayescal.end_to_end.fit import fit_end_to_end
from bayescal.end_to_end.predictor import EndToEndPredictor, load_model

__all__ = ["EndToEndPredictor", "algorithm_names", "fit_end_to_end", "get_algorithm", "load_model"]
