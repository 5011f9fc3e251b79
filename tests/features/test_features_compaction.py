"""Small segments become one, and nothing is lost by it; without a place to write, features stay in memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_features_bank import make_images, small_backbone
from test_features_store import ABOUT, DIM, files, read, some_rows

from bayescal.errors import BayescalWarning
from bayescal.features import FeatureBank, compaction
from bayescal.features.store import RowStore
from bayescal.util.process import process_mark

MANY = compaction.MANY


def write_segments(folder: Path, keys: np.ndarray, rows: np.ndarray) -> None:
    """A segment for each row, as by as many processes that have ended."""
    for i in range(len(keys)):
        RowStore(folder, DIM, ABOUT).append(keys[i : i + 1], rows[i : i + 1])


def all_there(store: RowStore, keys: np.ndarray, rows: np.ndarray) -> bool:
    out, found, damaged = read(store, keys)
    return bool(found.all()) and np.array_equal(out, rows) and damaged == 0


def test_many_small_segments_become_one(tmp_path):
    keys, rows = some_rows(MANY + 1)
    write_segments(tmp_path, keys[:MANY], rows[:MANY])
    reader = RowStore(tmp_path, DIM, ABOUT)
    assert reader.has(keys[:MANY]).all()  # has the small ones in its index
    assert len(files(tmp_path, "rows")) == MANY
    RowStore(tmp_path, DIM, ABOUT).append(keys[MANY:], rows[MANY:])
    assert len(files(tmp_path, "rows")) == len(files(tmp_path, "keys")) == 2
    assert all_there(reader, keys, rows)
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys, rows)


def test_segments_that_somebody_writes_and_large_ones_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "SMALL", 3)
    keys, rows = some_rows(MANY + 30)
    writer, large = RowStore(tmp_path, DIM, ABOUT), RowStore(tmp_path, DIM, ABOUT)
    writer.append(keys[:1], rows[:1])
    large.append(keys[1:6], rows[1:6])
    held = {path.name for path in files(tmp_path, "keys")}
    write_segments(tmp_path, keys[6 : MANY + 6], rows[6 : MANY + 6])
    left = {path.name for path in files(tmp_path, "keys")}
    assert held <= left
    assert len(left) == 4  # two that are left alone, one joined, and that of the last writer
    writer.append(keys[MANY + 6 :], rows[MANY + 6 :])  # to the segment it had
    assert {path.name for path in files(tmp_path, "keys")} == left
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys, rows)


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from pathlib import Path
from bayescal.features import compaction
from bayescal.features.store import RowStore
from bayescal.util.process import process_mark
from test_features_store import ABOUT, DIM, some_rows

steps = int(sys.argv[3])
def count(real):
    def step(*given, **more):
        global steps
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        steps -= 1
        return real(*given, **more)
    return step

compaction._write = count(compaction._write)
Path.unlink = count(Path.unlink)
keys, rows = some_rows(compaction.MANY + 1)
RowStore(Path(sys.argv[1]), DIM, ABOUT).append(keys[-1:], rows[-1:])
"""


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 2 + MANY])
def test_a_kill_in_the_middle_loses_nothing(tmp_path, steps):
    keys, rows = some_rows(MANY + 1)
    write_segments(tmp_path, keys[:MANY], rows[:MANY])
    known = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), known, str(steps)], timeout=60)
    assert done.returncode == -9
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys[:MANY], rows[:MANY])
    RowStore(tmp_path, DIM, ABOUT).append(keys[MANY:], rows[MANY:])
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys, rows)


def test_a_full_disk_leaves_the_segments_as_they_are(tmp_path, monkeypatch):
    keys, rows = some_rows(MANY + 1)
    write_segments(tmp_path, keys[:MANY], rows[:MANY])
    real = compaction._write

    def full(path, data):
        real(path, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compaction, "_write", full)
    RowStore(tmp_path, DIM, ABOUT).append(keys[MANY:], rows[MANY:])
    assert len(files(tmp_path, "rows")) == len(files(tmp_path, "keys")) == MANY + 1
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys, rows)


# --- no cache ----------------------------------------------------------------------------------------------------


def test_without_a_cache_nothing_is_written_and_copies_are_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESCAL_CACHE", str(tmp_path / "cache"))
    images = make_images(tmp_path / "images", 3)
    cached, free = FeatureBank(small_backbone(), tmp_path / "other"), FeatureBank(small_backbone(), None)
    encoded = free.encode([*images, images[0]])
    assert encoded.computed == 3
    assert encoded.features.equal(cached.encode([*images, images[0]]).features)
    assert free.encode_views(images, 2).features.equal(cached.encode_views(images, 2).features)
    assert free.encode(images).computed == 0  # the bank itself remembers
    assert not (tmp_path / "cache").exists()


def test_a_place_that_cannot_be_written_to_is_a_note(tmp_path):
    (tmp_path / "file").write_text("in the way")
    images = make_images(tmp_path / "images", 3)
    with pytest.warns(BayescalWarning, match="cannot be written to .* goes on without it"):
        encoded = FeatureBank(small_backbone(), tmp_path / "file").encode(images)
    assert encoded.computed == 3
    assert bool(encoded.features.isfinite().all())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where no folder can be made")
def test_a_place_where_no_folder_can_be_made_is_a_note(tmp_path):
    images = make_images(tmp_path / "images", 3)
    with pytest.warns(BayescalWarning, match="cannot be written to .* goes on without it"):
        assert FeatureBank(small_backbone(), Path("/proc/nowhere")).encode(images).computed == 3


def test_a_cache_that_became_read_only_is_read(tmp_path, monkeypatch):
    images = make_images(tmp_path / "images", 4)
    FeatureBank(small_backbone(), tmp_path / "cache").encode(images[:3])

    def refused(*given):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("bayescal.features.store._append", refused)
    with pytest.warns(BayescalWarning, match="Read-only file system"):
        encoded = FeatureBank(small_backbone(), tmp_path / "cache").encode(images)
    assert encoded.computed == 1
    assert bool(encoded.features.isfinite().all())


# --- what killed processes leave ---------------------------------------------------------------------------------

WRITING = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from pathlib import Path
from bayescal.features import store
from test_features_store import ABOUT, DIM, some_rows

def stop(*given):
    print("stopped", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), 9)

real, left = store._append, [int(sys.argv[3])]
def append(*given):
    stop() if not left[0] else real(*given)
    left[0] -= 1
store._append = append
store.RowStore(Path(sys.argv[1]), DIM, ABOUT).append(*some_rows(1))
"""


@pytest.mark.parametrize("written", [0, 1])
def test_a_segment_of_less_than_a_row_stays_while_its_process_lives_and_goes_when_it_is_dead(tmp_path, written):
    known = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(tmp_path), known, str(written)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert writer.stdout.readline() == b"stopped\n"  # before the rows, or between rows and keys
    started = files(tmp_path, "keys") + files(tmp_path, "rows")
    assert len(started) == 1 + written
    RowStore(tmp_path, DIM, ABOUT)
    assert all(path.exists() for path in started)
    writer.communicate(timeout=60)
    assert writer.returncode == -9
    RowStore(tmp_path, DIM, ABOUT)
    assert not any(path.exists() for path in started)


def test_rows_without_keys_and_drafts_of_the_dead_go_and_whole_segments_stay(tmp_path):
    keys, rows = some_rows(3)
    RowStore(tmp_path, DIM, ABOUT).append(keys, rows)
    whole = files(tmp_path, "keys") + files(tmp_path, "rows")
    here = process_mark().partition("-")[0]
    mine = tmp_path / f".bank.json.{process_mark()}.abcdef01.tmp"
    for path in (mine, tmp_path / f".bank.json.{here}-1-0.abcdef01.tmp", tmp_path / "0123456789abcdef.rows"):
        path.write_bytes(bytes(20))
    assert all_there(RowStore(tmp_path, DIM, ABOUT), keys, rows)
    assert sorted(tmp_path.iterdir()) == sorted([*whole, mine, tmp_path / "bank.json"])
