"""A model as an ONNX graph that answers without torch: image tower, what was learned, temperature, preprocessing."""

from typing import TYPE_CHECKING

from bayescal.util.lazy import lazy_names

if TYPE_CHECKING:
    from bayescal.export.writing import export_model

__getattr__ = lazy_names(__name__, {"export_model": "bayescal.export.writing"})
__all__ = ["export_model"]
