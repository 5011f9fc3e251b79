"""The fixtures of the command line's tests."""

from command_line import _own_cache, _trained, model, shapes

__all__ = ["_own_cache", "_trained", "model", "shapes"]
