"""A search on a Ray cluster of two nodes on this machine, against the same search in one process.

    python -m speed.cluster BUNDLE [--nodes 2] [--trials 8] [--methods bayes-cal] [--kill]

BUNDLE is a packed data set (`bayescal data pack`). Every node has one CPU, and the single process one thread, so the
best there can be is the number of nodes. One process, then the cluster, each with an empty database. Other programs may
run, so times are processor time: of the one process, and of the busiest worker with its start, which is how long the
search takes where every worker has a core. Wall times are in the notes. `--kill` ends the last node after the first
stacks.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from speed.measure import Result, print_results, write_json

RESULTS = Path(__file__).parent / "results" / "cluster-cpu.json"
VARYING = ("made", "seconds", "versions")
STORE = 512 * 2**20


class Clock:
    """Work that says which process it is in, and how long that has computed."""

    def to(self, device: str) -> "Clock":
        return self

    def __call__(self, part: int) -> tuple[int, float]:
        time.sleep(0.3)  # so that no worker does all parts
        return os.getpid(), time.process_time()


def searched(bundle: Path, folder: Path, arguments: argparse.Namespace, address: str | None) -> tuple[list, dict]:
    """Wall seconds and processor seconds of each worker of a search of every method, and its records by key."""
    from bayescal.benchmark.bench import Bench, Options
    from bayescal.benchmark.bundle import bundled_name
    from bayescal.benchmark.searches import Search
    from bayescal.benchmark.sources import Sources
    from bayescal.benchmark.store import Store, sqlite_url
    from bayescal.benchmark.variants import get_variant
    from bayescal.distributed.ray_cluster import Cluster

    name = bundled_name(bundle)
    options = Options((name,), trials=arguments.trials, seeds=(1,))
    cluster = Cluster(address) if address else None
    bench = Bench(options, Sources({name: bundle}, "mini", (1,), cluster=cluster), Store(sqlite_url(folder)), folder)
    bench.sources.prepared(name)
    started, used = time.perf_counter(), time.process_time()
    bench.train([Search(name, get_variant(method)) for method in arguments.methods])
    seconds = [time.perf_counter() - started, time.process_time() - used]
    if cluster is not None:
        seconds[1:] = dict(found for _, found in cluster.scatter(Clock(), range(6 * cluster.workers))).values()
    return seconds, {record.key: record for record in bench.store.find()}


def differences(one: dict, two: dict) -> dict:
    """Keys and digests must be the same; numbers may differ by rounding, since stacks have other sizes."""
    assert one.keys() == two.keys()
    assert all(one[key].split == two[key].split for key in one)
    plain = lambda record: {name: value for name, value in record.to_json().items() if name not in VARYING}  # noqa: E731
    accuracies = [
        abs(one[key].scores[at].accuracy - two[key].scores[at].accuracy) for key in one for at in one[key].scores
    ]
    return {
        "runs": len(one),
        "records equal in every digit": sum(plain(one[key]) == plain(two[key]) for key in one),
        "largest difference of an accuracy": max(accuracies),
    }


def kill_in_the_middle(nodes: object, last: object, folder: Path) -> threading.Thread:
    """End a node as soon as something is recorded."""
    from bayescal.benchmark.store import Store, sqlite_url

    def watch() -> None:
        while not (folder / "study.db").exists() or not any(True for _ in Store(sqlite_url(folder)).find()):
            time.sleep(0.2)
        nodes.remove_node(last, allow_graceful=False)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--methods", nargs="+", default=["bayes-cal"])
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()

    import ray
    import torch
    from ray.cluster_utils import Cluster

    torch.set_num_threads(1)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    others = [nodes.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(arguments.nodes - 1)]
    try:
        with tempfile.TemporaryDirectory() as base:
            here, there = Path(base) / "here", Path(base) / "there"
            alone, one = searched(arguments.bundle, here, arguments, None)
            if arguments.kill:
                kill_in_the_middle(nodes, others[-1], there)
            shared, two = searched(arguments.bundle, there, arguments, nodes.address)
            what = f"{arguments.nodes} nodes{', one killed' if arguments.kill else ''} / one process"
            wall = {"wall seconds": [shared[0], alone[0]], "processor seconds of the workers": shared[1:]}
            results = [Result(what, max(shared[1:]), alone[1], notes=differences(one, two) | wall)]
    finally:
        ray.shutdown()
        nodes.shutdown()
    print_results(results)
    path = RESULTS.with_stem(RESULTS.stem + ("-killed" if arguments.kill else ""))
    options = f"--nodes {arguments.nodes} --trials {arguments.trials} --methods {' '.join(arguments.methods)}"
    command = f"python -m speed.cluster {arguments.bundle.name} {options}{' --kill' if arguments.kill else ''}"
    write_json(results, path, command, clock="processor", load=round(os.getloadavg()[0], 1))


if __name__ == "__main__":
    main()
