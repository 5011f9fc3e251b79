"""The fixtures of the tests of what comes from outside."""

from benches import _made, pictures, prepared
from command_line import _own_cache, _trained, shapes

__all__ = ["_made", "_own_cache", "_trained", "pictures", "prepared", "shapes"]
