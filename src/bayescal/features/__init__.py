"""Images become features once: a cache on disk, keyed by image content, backbone and transform."""

from typing import TYPE_CHECKING

from bayescal.util.lazy import lazy_names

if TYPE_CHECKING:
    from bayescal.features.bank import Encoded, FeatureBank
    from bayescal.features.cache_folder import AUTO, default_folder
    from bayescal.features.feature_rows import Failure, FeatureRows

__all__ = ["AUTO", "Encoded", "Failure", "FeatureBank", "FeatureRows", "default_folder"]

# On first use: what a name needs is not loaded for the others.
_HOMES = {
    "AUTO": "bayescal.features.cache_folder",
    "Encoded": "bayescal.features.bank",
    "FeatureBank": "bayescal.features.bank",
    "default_folder": "bayescal.features.cache_folder",
    "Failure": "bayescal.features.feature_rows",
    "FeatureRows": "bayescal.features.feature_rows",
}
__getattr__ = lazy_names(__name__, _HOMES)
