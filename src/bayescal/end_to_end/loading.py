"""Reading models of every kind, without importing what only some kinds need."""

from pathlib import Path
from typing import Any

from bayescal.estimator import predictor  # noqa: F401 - registers the kinds on a frozen backbone
from bayescal.estimator.artifact import END_TO_END
from bayescal.estimator.base_predictor import BasePredictor, register_kind


def _restore(*what_load_passes: Any) -> BasePredictor:
    from bayescal.end_to_end.predictor import EndToEndPredictor

    return EndToEndPredictor.restore(*what_load_passes)


register_kind(END_TO_END, _restore)


def load_model(path: str | Path, backbone: str | None = None, device: str = "auto") -> BasePredictor:
    """Read a saved model of either kind: on a frozen backbone (`backbone`: where it is now), or trained end to end."""
    return BasePredictor.load(path, backbone, device)
