"""A model that `bayescal export` wrote, computed by onnxruntime; torch is not needed."""

import numpy as np

from bayescal.errors import BayescalError
from bayescal.estimator.prediction import Prediction
from bayescal.export.reading import ExportedModel


class OnnxEngine(ExportedModel):
    """An exported model as the server asks it: it takes no features (`width` is None)."""

    def predict_features(self, features: np.ndarray) -> Prediction:
        raise BayescalError("an exported model takes images alone")
