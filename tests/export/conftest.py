"""The fixtures of the tests of exported models."""

from exporting import exported

from command_line import _own_cache, _trained, model, shapes

__all__ = ["_own_cache", "_trained", "exported", "model", "shapes"]
