"""The fixtures of the classifier's tests."""

from classifying import cache, data, fit, fitted, fresh, make

__all__ = ["cache", "data", "fit", "fitted", "fresh", "make"]
