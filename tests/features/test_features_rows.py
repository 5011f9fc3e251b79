"""Features that stay on disk: the right rows, only the rows that are asked for, and memory that does not grow."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from test_features_bank import DIM, backbone, images
from test_features_store import ABOUT, read, some_rows
from test_features_store import DIM as SMALL

from bayescal.errors import BayescalWarning, DataError
from bayescal.features import FeatureBank, extract
from bayescal.features.content_index import ContentIndex, _first_of
from bayescal.features.store import RowStore, make_keys
from bayescal.features.threads import in_parallel

__all__ = ["backbone", "images"]  # fixtures


def damage(cache: Path, row: int) -> None:
    path = next(cache.rglob("*.rows"))
    data = bytearray(path.read_bytes())
    data[row * 4 * DIM] ^= 1
    path.write_bytes(data)


@pytest.fixture
def bank(tmp_path, backbone) -> FeatureBank:
    return FeatureBank(backbone, tmp_path / "cache", workers=1)  # one thread: rows lie on disk in the order given


def test_rows_are_those_of_encode(bank, images):
    sources = [*images[:9], images[2], images[0]]
    rows = bank.rows(sources)
    expected = bank.encode(sources)
    assert (len(rows), rows.shape, rows.computed, expected.computed) == (11, (11, DIM), 9, 0)
    for indices in ([3], [8, 0, 0, 9], slice(2, 5), np.arange(11) % 2 == 0, slice(None), [-1], []):
        chosen = torch.from_numpy(np.arange(11)[indices]).long()
        assert torch.equal(rows.read(indices), expected.features[chosen])
    assert tuple(rows.contents.hexes()) == expected.hashes
    with pytest.raises(IndexError):
        rows.read([11])


def test_rows_of_views(bank, images):
    rows = bank.rows(images[:4], views=3)
    assert rows.shape == (4, 3, DIM)
    assert torch.equal(rows.read([2, 1]), bank.encode_views(images[:4], 3).features[[2, 1]])
    assert bank.rows(images[:4], views=0).read().shape == (4, 0, DIM)
    assert bank.rows([]).read().shape == (0, DIM)


def test_failures_are_reported_with_their_copies_and_read_as_nan(bank, images, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(images[0].read_bytes()[:60])
    rows = bank.rows([images[0], broken, tmp_path / "missing.png", broken, images[1]])
    assert [failure.index for failure in rows.failures] == [1, 2, 3]
    assert rows.failures[0].reason == rows.failures[2].reason
    assert rows.read().isnan().all(dim=1).tolist() == [False, True, True, True, False]
    assert rows.read([3, 0]).isnan().all(dim=1).tolist() == [True, False]


def test_only_rows_that_are_asked_for_are_touched(bank, images, recwarn):
    expected = bank.encode(images).features
    damage(bank.folder, row=7)
    rows = bank.rows(images)
    others = [i for i in range(21) if i != 7]
    assert torch.equal(rows.read(others), expected[others])
    assert rows.computed == 0
    assert not [w for w in recwarn if w.category is BayescalWarning]
    with pytest.warns(BayescalWarning, match="1 damaged rows"):
        assert torch.allclose(rows.read([7, 3]), expected[[7, 3]], atol=1e-5)
    assert rows.computed == 1
    assert torch.allclose(rows.read([7]), expected[[7]], atol=1e-5)  # from the cache again
    assert rows.computed == 1


def test_a_cache_that_is_deleted_is_filled_again(bank, images, monkeypatch):
    rows = bank.rows(images)
    expected = rows.read()
    for path in [*bank.folder.rglob("*.rows"), *bank.folder.rglob("*.keys")]:
        path.unlink()
    assert torch.allclose(rows.read([4, 5]), expected[[4, 5]], atol=1e-5)
    assert rows.computed == 21 + 2
    monkeypatch.setattr(RowStore, "read", lambda self, keys, out, at: (np.zeros(len(keys), dtype=bool), 0))
    with pytest.raises(DataError, match="cannot be read back"):
        rows.read([4])


def test_copies_are_found_whatever_their_order():
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (40, 32), dtype=np.uint8)
    kinds[1, :31] = kinds[0, :31]  # all but the last byte are equal …
    kinds[2, 8:] = kinds[3, 8:]  # … or all but the first
    which = rng.integers(0, 40, 300)
    digests = kinds[which]
    first = _first_of(digests, [5])
    assert first[5] == -1
    expected = [int(np.flatnonzero(which == k)[0]) for k in which]
    assert [f for i, f in enumerate(first.tolist()) if i != 5] == [e for i, e in enumerate(expected) if i != 5]
    contents = ContentIndex(digests, _first_of(digests, []), {})
    assert len(contents.distinct) == len(set(which.tolist()))


def test_threads_have_work_while_a_result_is_used():
    """With an accelerator, the caller is busy with one batch while others must be decoded."""
    begun = [threading.Event() for _ in range(6)]
    with ThreadPoolExecutor(2) as pool:
        results = in_parallel(pool, lambda i: (begun[i].set(), i)[1], range(6), ahead=3)
        taken = []
        for n, item in enumerate(results):  # while the n-th is used, all up to n + 2 get begun
            assert all(event.wait(10) for event in begun[: n + 3])
            assert not any(event.is_set() for event in begun[n + 3 :])
            taken.append(item)
    assert sorted(taken) == list(range(6))


def test_the_model_has_the_next_batch_before_the_last_one_is_handed_on(monkeypatch):
    steps = []

    def begin(backbone, rows, size, prepare):
        steps.append(f"begin {rows}")
        return lambda: steps.append(f"finish {rows}") or rows

    monkeypatch.setattr(extract, "_begin", begin)
    for rows in extract._one_ahead(None, iter("abc"), 1, None):
        steps.append(f"store {rows}")
    order = "begin a, begin b, finish a, store a, begin c, finish b, store b, finish c, store c"
    assert ", ".join(steps) == order


CODE = """
import json, sys
from pathlib import Path
import numpy as np
from bayescal.features.store import RowStore, keys_of

folder, n, dim = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def now(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(name))
def peak(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = now("VmRSS")
    work()
    return now("VmHWM") - before

def digests(first, end):
    return np.random.default_rng(first).integers(0, 256, (end - first, 32), dtype=np.uint8)
def write():
    store = RowStore(folder, dim, {})
    for first in range(0, n, 1000):
        rows = np.random.default_rng(first + 1).random((1000, dim), dtype=np.float32)
        store.append(keys_of(digests(first, first + 1000), [0]), rows)
def read():
    keys = np.concatenate([keys_of(digests(first, first + 1000), [0])[::20] for first in range(0, n, 1000)])
    some = np.random.default_rng(0).permutation(len(keys))[:1000]
    out = np.empty((1000, dim), dtype=np.float32)
    found, damaged = RowStore(folder, dim, {}).read(keys[some], out, np.arange(1000))
    assert found.all() and not damaged
print(json.dumps([peak(write), peak(read)]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="memory is measured as Linux tells it")
def test_memory_does_not_grow_with_the_features(tmp_path):
    n, dim = 40_000, 1024  # 164 MB
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), str(n), str(dim)], check=True, capture_output=True, text=True
    )
    writing, reading = json.loads(done.stdout)
    assert writing < 24  # MB: 1000 rows are 4
    assert reading < 48  # a window is 17 MB, a copy of it at most as much
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.02 * 4 * n * dim


def test_what_others_add_is_indexed_without_starting_anew(tmp_path, monkeypatch):
    keys, rows = some_rows(60)
    one, two = (RowStore(tmp_path, SMALL, ABOUT) for _ in range(2))
    indexed = []
    real = RowStore._new_tags

    def counted(self, segment, first, end):
        indexed.append(end - first)
        return real(self, segment, first, end)

    monkeypatch.setattr(RowStore, "_new_tags", counted)
    for at in range(0, 60, 20):
        one.append(keys[at : at + 10], rows[at : at + 10])
        two.append(keys[at + 10 : at + 20], rows[at + 10 : at + 20])
        out, found, damaged = read(one, keys)
        assert found.tolist() == [True] * (at + 20) + [False] * (40 - at)
        assert np.array_equal(out[found], rows[found])
        assert damaged == 0
        assert one.has(keys).tolist() == found.tolist()
    assert indexed == [10] * 6


def test_keys_that_share_their_tag_stay_apart(tmp_path):
    """Equal in the 64 bits that the index holds, different in others: found by their whole keys."""
    keys = make_keys([f"{'ab' * 8}{i:048x}" for i in range(5)], [0])
    rows = np.arange(5 * SMALL, dtype=np.float32).reshape(5, SMALL)
    store = RowStore(tmp_path, SMALL, ABOUT)
    store.append(keys[:3], rows[:3])
    out, found, damaged = read(store, keys)
    assert found.tolist() == store.has(keys).tolist() == [True] * 3 + [False] * 2
    assert np.array_equal(out[:3], rows[:3])
    assert damaged == 0
