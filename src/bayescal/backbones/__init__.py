"""Frozen vision-language models: finding, loading and using them. Importing this needs torch alone."""

from bayescal.backbones.base import Backbone, Preprocess
from bayescal.backbones.catalogue import CatalogueEntry, list_backbones
from bayescal.backbones.defaults import TrainingDefaults
from bayescal.backbones.loading import describe_backbone, load_backbone
from bayescal.text.tower import TextTower

__all__ = [
    "Backbone",
    "CatalogueEntry",
    "Preprocess",
    "TextTower",
    "TrainingDefaults",
    "describe_backbone",
    "list_backbones",
    "load_backbone",
]
