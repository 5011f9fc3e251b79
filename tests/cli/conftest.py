"""The fixtures of the command line's tests."""

from benches import _made, arena, bench_all, bundle, pictures
from command_line import _own_cache, _trained, model, shapes

__all__ = ["_made", "_own_cache", "_trained", "arena", "bench_all", "bundle", "model", "pictures", "shapes"]
