"""A real Ray cluster of two nodes on this machine, and the fixtures of a tiny data set."""

import warnings

import pytest

from benches import _made, bundle, pictures, prepared, store
from command_line import _own_cache

__all__ = ["_made", "_own_cache", "bundle", "pictures", "prepared", "store"]

NODE = {"num_cpus": 1, "object_store_memory": 256 * 2**20}


class Nodes:
    """Two nodes with one CPU each; one that was killed is replaced for the next test."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        self.second = None

    @property
    def address(self) -> str:
        return self.cluster.address

    def ready(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(**NODE)
            self.cluster.wait_for_nodes()

    def kill_second(self) -> None:
        node, self.second = self.second, None
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="session")
def _nodes():
    ray = pytest.importorskip("ray", reason="needs Ray: pip install bayescal[ray]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DISABLE_MEMORY_MONITOR", "1")
        patch.delenv("RAY_ADDRESS", raising=False)
        nodes = Nodes()
        try:
            yield nodes
        finally:
            ray.shutdown()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nodes.cluster.shutdown()


@pytest.fixture
def nodes(_nodes) -> Nodes:
    _nodes.ready()
    return _nodes


@pytest.fixture
def cluster(nodes):
    """Connected to both nodes."""
    from bayescal.distributed.ray_cluster import Cluster

    return Cluster(nodes.address)
