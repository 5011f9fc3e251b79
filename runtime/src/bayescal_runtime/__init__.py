"""Answers of a classifier that `bayescal export` wrote, without torch.

>>> from bayescal_runtime import load
>>> classifier = load("exported")                     # doctest: +SKIP
>>> classifier.predict_selective(["photo.jpg"])       # doctest: +SKIP
"""

from bayescal_runtime._bayescal.errors import BayescalError
from bayescal_runtime._bayescal.estimator.prediction import Prediction
from bayescal_runtime.classifier import Classifier, load

__all__ = ["BayescalError", "Classifier", "Prediction", "load"]
