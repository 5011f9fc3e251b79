"""Rows on disk: found again, cut at every byte, damaged, shared, out of space."""

import copy
import errno
import json
import os
import pickle
import secrets
import shutil
from pathlib import Path

import numpy as np
import pytest

from bayescal.errors import DataError
from bayescal.features import store as store_module
from bayescal.features.store import RowStore, make_keys

DIM = 5
ABOUT = {"fingerprint": "f" * 20, "transform": "plain-1"}


def some_rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = make_keys([rng.bytes(32).hex() for _ in range(n)], [0])
    return keys, rng.normal(size=(n, DIM)).astype(np.float32)


def read(store: RowStore, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    out = np.full((len(keys), store.dim), np.nan, dtype=np.float32)
    found, damaged = store.read(keys, out, np.arange(len(keys)))
    return out, found, damaged


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*.{suffix}"))


def test_rows_are_found_by_key(tmp_path):
    store = RowStore(tmp_path, DIM, ABOUT)
    keys, rows = some_rows(20)
    store.append(keys[:8], rows[:8])
    store.append(keys[8:15], rows[8:15])
    for reader in (store, RowStore(tmp_path, DIM, ABOUT)):
        out, found, damaged = read(reader, keys[::-1])
        assert found[::-1].tolist() == [True] * 15 + [False] * 5
        assert damaged == 0
        assert np.array_equal(out[::-1][:15], rows[:15])
        assert np.isnan(out[::-1][15:]).all()
    assert len(files(tmp_path, "rows")) == 1  # one segment per writer, not per batch
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix not in (".rows", ".keys")) == ["bank.json"]


def test_keys_that_end_in_zero_bytes_stay_apart():
    hashes = ["ab" * 31 + "00", "ab" * 30 + "0000"]
    keys = make_keys(hashes, [0, 1, 256, 2**31 - 1])
    assert len(np.unique(keys)) == 8


def test_views_are_told_apart(tmp_path):
    store = RowStore(tmp_path, DIM, ABOUT)
    keys = make_keys(["00" * 32], range(300))
    rows = np.arange(300 * DIM, dtype=np.float32).reshape(300, DIM)
    store.append(keys, rows)
    assert np.array_equal(read(store, keys)[0], rows)


def test_cut_at_every_byte_gives_whole_rows_only(tmp_path):
    """A kill leaves both files cut somewhere; whatever is then found must be right."""
    original = tmp_path / "original"
    keys, rows = some_rows(4)
    RowStore(original, DIM, ABOUT).append(keys, rows)
    sizes = {p.suffix: p.stat().st_size for p in original.glob("*.*s")}
    assert sizes == {".rows": 4 * 4 * DIM, ".keys": 4 * 40}
    for suffix, unit in ((".rows", 4 * DIM), (".keys", 40)):
        for cut in range(sizes[suffix] + 1):
            folder = tmp_path / "cut"
            shutil.copytree(original, folder)
            os.truncate(next(folder.glob(f"*{suffix}")), cut)
            store = RowStore(folder, DIM, ABOUT)
            out, found, damaged = read(store, keys)
            assert found.sum() == cut // unit
            assert damaged == 0
            assert np.array_equal(out[found], rows[found])
            store.append(keys[~found], rows[~found])  # and the work goes on
            assert np.array_equal(read(store, keys)[0], rows)
            shutil.rmtree(folder)


@pytest.mark.parametrize("suffix", ["rows", "keys"])
def test_any_flipped_bit_is_noticed(tmp_path, suffix):
    keys, rows = some_rows(3)
    RowStore(tmp_path, DIM, ABOUT).append(keys, rows)
    path = files(tmp_path, suffix)[0]
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        out, found, damaged = read(RowStore(tmp_path, DIM, ABOUT), keys)
        assert found.sum() == 2
        assert np.array_equal(out[found], rows[found])
        if suffix == "rows":
            assert damaged == 1


def test_a_whole_copy_is_preferred_to_a_damaged_one(tmp_path):
    keys, rows = some_rows(3)
    for _ in range(3):
        RowStore(tmp_path, DIM, ABOUT).append(keys, rows)
    for path in files(tmp_path, "rows")[:2]:
        path.write_bytes(bytes(path.stat().st_size))
    out, found, damaged = read(RowStore(tmp_path, DIM, ABOUT), keys)
    assert found.all()
    assert damaged == 0
    assert np.array_equal(out, rows)


def test_a_segment_that_vanishes_is_absent_not_an_error(tmp_path):
    keys, rows = some_rows(3)
    store = RowStore(tmp_path, DIM, ABOUT)
    store.append(keys, rows)
    assert read(store, keys)[1].all()
    files(tmp_path, "rows")[0].unlink()
    assert not read(store, keys)[1].any()
    store.append(keys, rows)
    assert read(store, keys)[1].all()


def test_copies_never_write_to_the_same_file(tmp_path):
    keys, rows = some_rows(9)
    store = RowStore(tmp_path, DIM, ABOUT)
    store.append(keys[:3], rows[:3])
    copies = [copy.copy(store), copy.deepcopy(store), pickle.loads(pickle.dumps(store))]
    for i, other in enumerate([store, *copies]):
        other.append(keys[i : i + 3], rows[i : i + 3])
    assert len(files(tmp_path, "rows")) == 4
    assert np.array_equal(read(store, keys[:6])[0], rows[:6])


@pytest.mark.parametrize("half_of", ["rows", "keys"])
def test_full_disk(tmp_path, monkeypatch, half_of):
    keys, rows = some_rows(6)
    store = RowStore(tmp_path, DIM, ABOUT)
    store.append(keys[:2], rows[:2])
    real = store_module._append

    def full(path, data):
        if path.suffix == f".{half_of}":
            real(path, data.view(np.uint8).reshape(-1)[: data.nbytes // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(store_module, "_append", full)
    with pytest.raises(DataError, match=r"the disk is full: features in .* need 0\.1 MB more") as error:
        store.append(keys[2:4], rows[2:4], remaining=1600)
    assert str(tmp_path) in str(error.value)
    assert "BAYESCAL_CACHE" in str(error.value)
    monkeypatch.setattr(store_module, "_append", real)
    store.append(keys[4:], rows[4:])
    out, found, damaged = read(RowStore(tmp_path, DIM, ABOUT), keys)
    assert found.tolist() == [True, True, False, False, True, True]
    assert damaged == 0
    assert np.array_equal(out[found], rows[found])


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        RowStore(tmp_path / "file" / "bank", DIM, ABOUT)


def test_another_format_is_refused(tmp_path):
    RowStore(tmp_path, DIM, ABOUT)
    header = json.loads((tmp_path / "bank.json").read_text())
    assert header == {"format": 1, "dim": DIM, **ABOUT}
    with pytest.raises(DataError, match=r"dim is 5, expected 6.*Delete the folder"):
        RowStore(tmp_path, 6, ABOUT)
    with pytest.raises(DataError, match="fingerprint"):
        RowStore(tmp_path, DIM, {**ABOUT, "fingerprint": "0" * 20})
    (tmp_path / "bank.json").write_text(json.dumps({**header, "format": 2}))
    with pytest.raises(DataError, match="format is 2, expected 1"):
        RowStore(tmp_path, DIM, ABOUT)
    (tmp_path / "bank.json").write_text("{")
    with pytest.raises(DataError, match="describes other features"):
        RowStore(tmp_path, DIM, ABOUT)


def test_many_rows_stay_small_and_quick(tmp_path):
    n, dim = 20_000, 512
    store = RowStore(tmp_path, dim, ABOUT)
    keys = make_keys([secrets.token_hex(32) for _ in range(n)], [0])
    rows = np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32)
    for at in range(0, n, 4000):
        store.append(keys[at : at + 4000], rows[at : at + 4000])
    out, found, _ = read(RowStore(tmp_path, dim, ABOUT), keys)
    assert found.all()
    assert np.array_equal(out, rows)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk < 1.03 * rows.nbytes
