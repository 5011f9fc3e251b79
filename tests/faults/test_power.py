"""What survives a power cut: that it is flushed to the disk before anything depends on it, and before it is said."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bayescal.benchmark.store import Store, sqlite_url
from bayescal.features import store as store_module
from bayescal.features.store import RowStore, make_keys
from bayescal.serving.labels import JOURNAL, Label, LabelStore

EXTRA = 3  # of SQLite: the folder is flushed too, after the journal's name has gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file is flushed")


@pytest.fixture
def flushed(monkeypatch) -> list[str]:
    """The names of files and folders as they are flushed, one after the other."""
    names: list[str] = []
    real = os.fsync

    def fsync(file) -> None:
        names.append(os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_every_connection_to_a_database_of_records_waits_for_the_disk(tmp_path):
    store = Store(sqlite_url(tmp_path))
    for _ in range(2):
        with store.engine.connect() as one, store.engine.connect() as other:
            for connection in (one, other):
                assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == EXTRA
        store.engine.dispose()


def some_rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    return make_keys([f"{i:064x}" for i in range(n)], [0]), np.ones((n, 4), np.float32)


def test_cached_features_are_flushed_when_the_last_is_there_rows_before_keys(tmp_path, flushed):
    store = RowStore(tmp_path, 4, {})
    flushed.clear()
    store.append(*some_rows(2))
    assert not flushed  # not for every batch
    store.flush()
    assert [Path(name).suffix for name in flushed[:2]] == [".rows", ".keys"]
    assert flushed[2:] == [str(tmp_path)]


def test_of_long_computations_a_power_cut_takes_little(tmp_path, flushed, monkeypatch):
    store = RowStore(tmp_path, 4, {})
    flushed.clear()
    monkeypatch.setattr(store_module, "_FLUSH_SECONDS", -1.0)
    store.append(*some_rows(2))
    assert [Path(name).suffix for name in flushed[:2]] == [".rows", ".keys"]


def test_an_added_image_and_its_label_are_on_the_disk_before_anybody_is_told(tmp_path, flushed):
    store = LabelStore(tmp_path)
    flushed.clear()
    image = store.keep_file(b"content", "a.png")
    assert any(Path(name).name.startswith(f".{image.id}") for name in flushed)  # under the name of its draft
    assert str(store.path(image).parent) in flushed
    flushed.clear()
    store.add([image])
    assert flushed == [str(tmp_path / JOURNAL)]
    store.label([(image.id, Label("dog", "here"))])
    assert flushed == [str(tmp_path / JOURNAL)] * 2
