"""Disks that are full, at every size: a sentence, exit code 2, and what was there stays."""

import os
import resource

import pytest
from campaign import in_child

from bayescal.benchmark.store import Store, sqlite_url
from bayescal.errors import DataError
from bayescal.util.atomic import write_bytes
from benches import record


@pytest.fixture
def small_files():
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_database_that_may_not_grow(tmp_path, small_files, r, rounds):
    store = Store(sqlite_url(tmp_path))
    store.add([record(key="a")])
    size = os.path.getsize(tmp_path / "study.db")
    for number in range(4 * rounds):
        small_files(size + r.randrange(4096))
        with pytest.raises(DataError, match=r"study\.db: the disk is full"):
            store.add([record(key=f"b{number}", made="x" * 200_000)])
        small_files(resource.RLIM_INFINITY)
        assert [one.key for one in Store(sqlite_url(tmp_path)).find()] == ["a"]


def test_a_file_that_may_not_grow_stays_as_it_was(tmp_path, small_files, r, rounds):
    write_bytes(tmp_path / "file", b"old")
    for _ in range(10 * rounds):
        small_files(r.randrange(1, 1000))
        with pytest.raises(OSError, match="large"):
            write_bytes(tmp_path / "file", bytes(2000))
        small_files(resource.RLIM_INFINITY)
        assert os.listdir(tmp_path) == ["file"]
        assert (tmp_path / "file").read_bytes() == b"old"


def test_a_fit_that_may_not_write_leaves_no_model_and_can_be_repeated(tmp_path, data, small_files, rounds):
    if rounds == 1:
        pytest.skip("two whole fits: with --faults-long")
    learn = ["fit", data, "-o", tmp_path / "model", "--method", "coop", "--set", "epochs=1", "--quiet"]
    small_files(8_000)
    code, _ = in_child(*learn, "--cache", tmp_path / "cache")
    small_files(resource.RLIM_INFINITY)
    assert code == 2
    assert not (tmp_path / "model").exists()
    assert in_child(*learn, "--cache", tmp_path / "cache")[0] == 0
    assert sorted(os.listdir(tmp_path)) == ["cache", "data", "model"]
