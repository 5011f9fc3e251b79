"""The fixtures of the command line's tests."""

from benches import _made, bench_all, bundle, pictures, prepared
from command_line import _own_cache, _trained, model, shapes

__all__ = ["_made", "_own_cache", "_trained", "bench_all", "bundle", "model", "pictures", "prepared", "shapes"]
