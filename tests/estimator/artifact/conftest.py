"""The fixtures of the tests of saved models."""

from artifacts import cache, classifier, model, paths, saved

__all__ = ["cache", "classifier", "model", "paths", "saved"]
