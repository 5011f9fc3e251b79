"""Images become features once: a cache on disk, keyed by image content, backbone and transform."""

from bayescal.features.bank import Encoded, FeatureBank, default_folder
from bayescal.features.rows import Failure, FeatureRows

__all__ = ["Encoded", "Failure", "FeatureBank", "FeatureRows", "default_folder"]
