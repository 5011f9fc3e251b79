"""Parts of any work over two real nodes: every result once, whatever happens to workers."""

import socket
import subprocess
import sys
import time

import pytest

import bayescal.distributed.ray_cluster as module
from bayescal.distributed.ray_cluster import Cluster, ClusterError
from bayescal.errors import BayescalWarning, DataError
from command_line import refused, run

pytestmark = pytest.mark.xdist_group("ray")


def work(function, arrives=lambda: None):
    """Work of one function. Made inside a function, so that it travels by value: workers do not have the tests."""

    class Made:
        def to(self, device):
            arrives()
            return self

        def __call__(self, part):
            return function(part)

    return Made()


def test_results_come_with_their_parts_and_both_nodes_work(cluster):
    def square(n):
        import ray

        time.sleep(0.05)
        return n * n, ray.get_runtime_context().get_node_id()

    assert cluster.workers == 2
    found = dict(cluster.scatter(work(square), range(20)))
    assert {n: result[0] for n, result in found.items()} == {n: n * n for n in range(20)}
    assert len({node for _, node in found.values()}) == 2


def test_parts_are_asked_for_when_a_worker_can_take_one(cluster):
    asked, seen = [], []

    def parts():
        for n in range(12):
            asked.append(n)
            yield n

    for n, _ in cluster.scatter(work(lambda n: n), parts()):
        seen.append(n)
        assert len(asked) <= len(seen) + 2 * 2
    assert sorted(seen) == list(range(12))


def test_work_arrives_once_per_worker(cluster, tmp_path):
    log = tmp_path / "arrived"

    def arrives():
        with open(log, "a") as file:
            file.write("here\n")

    assert len(list(cluster.scatter(work(lambda n: n, arrives), range(16)))) == 16
    assert 1 <= len(log.read_text().split()) <= 4  # a worker process may be replaced; not once per part


def test_a_worker_that_dies_once_is_replaced(cluster, tmp_path):
    def dies_once(n):
        import os

        mark = tmp_path / str(n)
        if n == 3 and not mark.exists():
            mark.touch()
            os._exit(1)
        return n

    with pytest.warns(BayescalWarning, match="a worker was lost"):
        found = [n for n, _ in cluster.scatter(work(dies_once), range(6))]
    assert sorted(found) == list(range(6))


def test_a_part_that_kills_every_worker_is_given_up(cluster, monkeypatch):
    def dies(n):
        import os

        os._exit(1)

    monkeypatch.setattr(module, "ATTEMPTS", 2)
    with pytest.warns(BayescalWarning), pytest.raises(ClusterError, match=r"ended its worker 2 times.*--max-runs"):
        list(cluster.scatter(work(dies), [1]))


def test_an_error_of_the_work_is_raised_here(cluster):
    def refuses(n):
        raise DataError("no such class")

    def fails(n):
        return 1 / 0

    with pytest.raises(DataError, match=f"on the worker {socket.gethostname()}: no such class"):
        list(cluster.scatter(work(refuses), [1, 2]))
    with pytest.raises(ZeroDivisionError):
        list(cluster.scatter(work(fails), [1, 2]))


def test_another_version_on_a_worker_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(module, "__version__", "0.0.7")
    with pytest.raises(ClusterError, match=r"has bayescal .* and 0\.0\.7 is at work"):
        list(cluster.scatter(work(lambda n: n), [1]))


def test_a_cluster_without_gpus_is_refused_for_cuda(nodes):
    with pytest.raises(ClusterError, match="no GPU for --device cuda; it has 2 CPUs and 0 GPUs"):
        Cluster(nodes.address, "cuda")


def test_a_cluster_whose_workers_are_gone_is_not_waited_for_for_ever(cluster, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(Cluster, "workers", 0)
    with pytest.raises(ClusterError, match="the same command continues"):
        list(cluster.scatter(work(lambda n: time.sleep(30)), [1]))


def bench(*more):
    return run("bench", "main", "--data", "pictures=.", *more)


def test_ray_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(bench("--ray", "auto"), 'pip install "bayescal[ray]"')


@pytest.mark.parametrize(("address", "words"), [("127.0.0.1:1", "nothing answers"), ("head", "HOST:PORT")])
def test_an_address_where_nothing_is(address, words, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    refused(bench("--ray", address), f"--ray {address}", words)
    assert time.monotonic() - started < 20


def test_no_cluster_on_this_machine(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")

    def nothing(**options):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nothing)
    refused(bench("--ray", "auto"), "ray start --head")


def test_ray_is_loaded_when_it_is_asked_for():
    modules = "bayescal.distributed.ray_cluster, bayescal.distributed.packing, bayescal.distributed.encode"
    code = f"import sys, {modules}; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
