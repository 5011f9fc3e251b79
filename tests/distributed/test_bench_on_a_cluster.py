"""`--ray`: the records, keys and features of a single machine, also when a node is killed in the middle."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from bayescal.benchmark.bundle import load_bundle
from bayescal.benchmark.experiments.base_to_new import ScoreNew
from bayescal.benchmark.remote import ClusterTrainer
from bayescal.benchmark.runner import run_all
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.data.transforms import Transform
from bayescal.distributed.encode import ClusterEncoder
from bayescal.errors import BayescalWarning, DataError
from bayescal.features import FeatureBank
from bayescal.features.decode import ImageRequest
from bayescal.features.extract import hash_all
from benches import bench_command, exact, like, planned_runs, same, short_mini
from command_line import run

pytestmark = pytest.mark.xdist_group("ray")


def local(tmp_path, planned, **options):
    return run_all(Store(sqlite_url(tmp_path / "local")), planned, **options)


@pytest.mark.parametrize("name", ["bayes-cal-lv", "coop"])
def test_records_are_those_of_one_machine(prepared, store, tmp_path, cluster, name):
    planned = planned_runs(prepared, name, trials=2)
    done = []
    records = run_all(store, planned, max_runs=3, trainer=ClusterTrainer(cluster), advance=done.append)
    assert exact(records) == exact(local(tmp_path, planned, max_runs=3))  # the same stacks: bit for bit
    assert sum(done) == sum(run.trial.config["epochs"] for run in {p.key: p for p in planned}.values())
    assert all(record.versions == records[0].versions for record in records)


def test_shards_of_another_size_give_the_same_up_to_rounding(prepared, store, tmp_path, cluster):
    planned = planned_runs(prepared, "cal-lv", trials=2)
    records = run_all(store, planned, trainer=ClusterTrainer(cluster))  # 12 runs on 2 workers: stacks of 3
    assert same(records) == same(local(tmp_path, planned))


def test_what_is_added_to_a_record_is_added_there_too(prepared, store, tmp_path, cluster):
    base, new = prepared.with_classes(("dog", "house")), prepared.with_classes(("guitar",))
    planned = planned_runs(base, "coop", seeds=(1,))
    options = {"trajectory": True, "add_to_record": ScoreNew(new, base.hashes), "max_runs": 3}
    records = run_all(store, planned, trainer=ClusterTrainer(cluster), **options)
    assert records[0].new["ood/own/new"].images == 7
    assert exact(records) == like(exact(local(tmp_path, planned, **options)))


def hangs_on_its_second_shard(node: str, log):
    """An `add_to_record` that writes down every stack as it ends, and never ends the second one on one of the nodes.

    Other nodes wait until that one has begun: otherwise they may have done everything before it starts.
    """

    def add_to_record(results, first):
        import ray

        at = ray.get_runtime_context().get_node_id()
        before = len(list(log.glob(f"{at}-*")))
        (log / f"{at}-{before}").write_text(first.key)
        if at == node and before == 1:
            time.sleep(600)
        deadline = time.monotonic() + 120
        while at != node and not (log / f"{node}-1").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return [{} for _ in results]

    return add_to_record


def test_a_node_killed_in_the_middle_loses_nothing(prepared, store, tmp_path, nodes, cluster, monkeypatch):
    planned = planned_runs(prepared, "cal-lv", trials=2)
    log = tmp_path / "log"
    log.mkdir()
    node = nodes.second.node_id
    added, add = [], Store.add

    def traced(self, records):
        added.extend((record.key, record.made) for record in records)
        add(self, records)

    monkeypatch.setattr(Store, "add", traced)

    def kill():
        while not (log / f"{node}-1").exists():
            time.sleep(0.01)
        nodes.kill_second()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    options = {"trainer": ClusterTrainer(cluster), "add_to_record": hangs_on_its_second_shard(node, log)}
    with pytest.warns(BayescalWarning, match="a worker was lost"):
        records = run_all(store, planned, max_runs=1, **options)
    killer.join()
    keys = sorted({run.key for run in planned})
    assert sorted(key for key, _ in added) == keys  # each written once
    kept = (log / f"{node}-0").read_text()  # finished by the node that died: not made again
    assert dict(added)[kept] == next(r.made for r in records if r.key == kept)
    begun = [path.read_text() for path in log.iterdir()]
    assert begun.count(kept) == 1
    assert begun.count((log / f"{node}-1").read_text()) == 2  # the one that was lost: begun again on the other node
    monkeypatch.undo()
    assert same(records) == same(local(tmp_path, planned))


def test_the_whole_command(pictures, nodes, tmp_path, monkeypatch):
    monkeypatch.setattr("bayescal.backbones.load_backbone", lambda name, device="cpu": short_mini())
    command = partial(bench_command, "main", pictures)
    options = ["--methods", "cal-lv,coop", "--max-runs", 3, "--cache"]  # no more runs than a stack has on two workers
    here = run(*command(tmp_path / "here", *options, tmp_path / "cache-1"))
    there = run(*command(tmp_path / "there", *options, tmp_path / "cache-2", "--ray", nodes.address))
    assert (here.code, there.code) == (0, 0), there.err
    assert there.out == here.out
    one, two = (exact(Store(sqlite_url(tmp_path / name)).find()) for name in ("here", "there"))
    assert one == two  # keys, digests, and every digit
    assert list((tmp_path / "cache-2").rglob("*"))  # encoded by workers, kept by the process that asked


def test_a_packed_data_set_holds_the_same(pictures, nodes, tmp_path):
    def pack(name, *more):
        options = ["--shots", 3, "--val-shots", 2, "--seeds", "1", "--cache", tmp_path / f"cache-{name}", *more]
        return run("data", "pack", "mine", "--from", pictures, "-o", tmp_path / f"{name}.bundle", *options)

    assert pack("here").code == 0
    result = pack("there", "--ray", nodes.address)
    assert result.code == 0, result.err
    one, two = (load_bundle(tmp_path / f"{name}.bundle") for name in ("here", "there"))
    assert torch.equal(one.problem.features, two.problem.features)
    assert one.hashes == two.hashes


def test_features_are_those_of_one_machine(mini, pictures, tmp_path, cluster, monkeypatch):
    monkeypatch.chdir(pictures)
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = [str(path.relative_to(pictures)) for path in sorted(pictures.rglob("*.png"))]
    files += [files[0], str(tmp_path / "broken.png")]
    here, there = FeatureBank(mini, tmp_path / "a"), FeatureBank(mini, tmp_path / "b", encoder=ClusterEncoder(cluster))
    one, two = here.encode(files), there.encode(files)
    np.testing.assert_allclose(two.features, one.features, rtol=1e-4, atol=1e-6)
    assert two.hashes == one.hashes
    assert two.failures == one.failures
    assert two.computed == one.computed == len(files) - 2
    views = [bank.encode_views(files[:5], 3).features for bank in (here, there)]
    np.testing.assert_allclose(views[1], views[0], rtol=1e-4, atol=1e-6)
    again = FeatureBank(mini, tmp_path / "b").encode(files)  # from the cache, without the cluster
    assert again.computed == 0
    np.testing.assert_array_equal(again.features, two.features)


def test_files_that_a_worker_does_not_have_are_said(mini, pictures, tmp_path, cluster):
    def encode(source, content):
        transform = Transform(mini.preprocess)
        return list(ClusterEncoder(cluster)(mini, [ImageRequest(0, source, content, (0,))], 1, transform, 1, 16))

    there = str(next(pictures.rglob("*.png")))
    (content,), _ = hash_all([there], 1)
    assert len(encode(there, content)) == 1
    with pytest.raises(DataError, match="mount the same folder on every node"):
        encode(str(tmp_path / "elsewhere.png"), content)
    with pytest.raises(DataError, match="is another file"):
        encode(there, "0" * 64)
