"""The fixtures of the experiments' tests."""

from benches import _made, arena, bench_all, bundle, few_draws, pictures, store
from command_line import _own_cache

__all__ = ["_made", "_own_cache", "arena", "bench_all", "bundle", "few_draws", "pictures", "store"]
