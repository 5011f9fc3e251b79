"""The fixtures of the benchmark's tests."""

from benches import _made, bench_all, bundle, few_samples, pictures, prepared, store
from command_line import _own_cache

__all__ = ["_made", "_own_cache", "bench_all", "bundle", "few_samples", "pictures", "prepared", "store"]
