"""Images become features once: a cache on disk, keyed by image content, backbone and transform."""

from bayescal.features.bank import Encoded, Failure, FeatureBank, default_folder

__all__ = ["Encoded", "Failure", "FeatureBank", "default_folder"]
