"""The fixtures of the protocol's tests."""

from benches import _made, arena, bench_all, bundle, pictures, store
from command_line import _own_cache

__all__ = ["_made", "_own_cache", "arena", "bench_all", "bundle", "pictures", "store"]
