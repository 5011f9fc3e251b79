"""What a killed process leaves is removed by the next command; what a living one is at work on is not."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayescal.benchmark.bundle import save_bundle
from bayescal.benchmark.runner import clear_checkpoints
from bayescal.benchmark.store import Store
from bayescal.cli.fit_screen import CHECKPOINTS, checkpoint_folder
from bayescal.estimator.artifact import CONFIG
from bayescal.util.atomic import beside
from bayescal.util.process import process_mark
from benches import record, short_trainings
from command_line import left_in, make_shapes, run
from old_files import OLD

pytestmark = pytest.mark.xdist_group("faults")
LONG = "m" * 250  # beside which `.NAME.checkpoints` has to be cut


@pytest.fixture(scope="module")
def dead() -> str:
    """The mark of a process of this machine that is gone."""
    code = "from bayescal.util.process import process_mark; print(process_mark())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def drafts(path: Path, mark: str, folder: bool = False) -> Path:
    """A draft of `path` by the process of a mark."""
    draft = beside(path, f"{mark}.abcdef01.tmp")
    draft.mkdir() if folder else draft.write_bytes(b"half")
    return draft


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def checkpoints_of(model: Path, seconds: float) -> Path:
    """A checkpoint beside a model, last written so long ago."""
    folder = beside(model, CHECKPOINTS)
    folder.mkdir()
    (folder / "0.safetensors").write_bytes(b"half a training")
    age(folder / "0.safetensors", seconds)
    age(folder, seconds)
    return folder


def model_of(path: Path, seconds: float) -> Path:
    path.mkdir()
    (path / CONFIG).write_text("{}")
    age(path / CONFIG, seconds)
    return path


@pytest.mark.parametrize("name", ["model", LONG, "a.b"])
def test_checkpoints_of_a_model_that_is_done_go_with_the_next_fit(tmp_path, name):
    finished = checkpoints_of(model_of(tmp_path / name, 50), seconds=60)
    with checkpoint_folder(tmp_path / "other", goes_after=BaseException):
        assert not finished.exists()


@pytest.mark.parametrize("empty", [False, True])
def test_checkpoints_that_were_half_removed_go_too(tmp_path, empty):
    """Whoever removes a file changes its folder: that is no sign of life."""
    left = checkpoints_of(model_of(tmp_path / "model", 50), seconds=60)
    if empty:
        (left / "0.safetensors").unlink()
    age(left, 20)
    with checkpoint_folder(tmp_path / "other", goes_after=BaseException):
        assert not left.exists()


def test_checkpoints_of_trainings_that_are_not_done_stay(tmp_path):
    model_of(tmp_path / "again", 50)  # which is to be replaced: `fit --force`
    kept = [
        checkpoints_of(tmp_path / "again", seconds=40),
        checkpoints_of(tmp_path / "new", seconds=40),  # there is no model yet
    ]
    model_of(tmp_path / "begins", 50)
    kept.append(beside(tmp_path / "begins", CHECKPOINTS))
    kept[-1].mkdir()  # a moment ago, by a process that has not written into it yet
    with checkpoint_folder(tmp_path / "other", goes_after=BaseException):
        assert all(folder.is_dir() for folder in kept)


def test_checkpoints_of_recorded_runs_go_and_those_of_others_stay(tmp_path):
    store = Store("sqlite://")
    store.add([record(key="a"), record(key="b")])
    for name, keys in (("done", "a\nb"), ("half", "b\nc"), ("living", "d")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.safetensors").write_bytes(b"half")
        (tmp_path / name / "runs").write_text(keys)
    for name in ("empty", "just-made", "nameless"):
        (tmp_path / name).mkdir()
    (tmp_path / "nameless" / "0.safetensors").write_bytes(b"half")
    for name in ("empty", "nameless"):
        age(tmp_path / name, 60)
    assert store.claim(["c", "d"]) == ["c", "d"]
    clear_checkpoints(tmp_path, store)
    assert left_in(tmp_path) == ["half", "just-made", "living", "nameless"]


def test_bench_clears_what_a_killed_one_left_of_finished_runs(tmp_path, bundle):
    command = ["bench", "main", "--data", bundle, "-o", tmp_path, "--methods", "clip", "--seeds", 1, "--quiet"]
    with short_trainings():
        assert run(*command).code == 0
        (key,) = {found.key for found in Store(f"sqlite:///{tmp_path}/study.db").find(fold="photo")}
        left = tmp_path / "checkpoints" / "0123456789abcdef"
        left.mkdir(parents=True)
        (left / "runs").write_text(key)
        assert run(*command).code == 0
    assert not left.exists()


# ---- drafts --------------------------------------------------------------------------------------------------------


def test_drafts_of_models_go_with_the_next_fit(tmp_path, dead):
    data = make_shapes(tmp_path / "data", n=2)
    mine, theirs = (drafts(tmp_path / "model", mark, folder=True) for mark in (process_mark(), dead))
    result = run("fit", data, "-o", tmp_path / "model", "--method", "clip", "--quiet")
    assert result.code == 0, result.err
    assert mine.is_dir()
    assert not theirs.exists()


def test_parts_of_packed_data_sets_go_with_the_next_pack(tmp_path, dead, prepared):
    mine, theirs = (drafts(tmp_path / "a.bundle", mark) for mark in (process_mark(), dead))
    save_bundle(prepared, tmp_path / "b.bundle")
    assert left_in(tmp_path) == sorted([mine.name, "b.bundle"])
    assert not theirs.exists()


def test_drafts_of_reports_and_their_figures_go_with_the_next_report(tmp_path, dead):
    results = tmp_path / "results"
    shutil.copytree(OLD / "results" / "sections", results / "sections")
    target = tmp_path / "sent"
    (target / "figures").mkdir(parents=True)
    places = (target / "report.html", target / "figures" / "a.svg")
    mine = [drafts(path, process_mark()) for path in places]
    theirs = [drafts(path, dead) for path in places]
    for _ in range(2):
        result = run("report", results, "--format", "all", "-o", target, "--force")
        assert result.code == 0, result.err
    assert all(path.exists() for path in mine)
    assert not any(path.exists() for path in theirs)


SAVING = """
import os, sys
from pathlib import Path
import safetensors.torch, torch
from bayescal.util.tensor_file import write_tensors

def half(tensors, path, metadata):
    (Path(path).parent / ".tmpAbCdEf").write_bytes(b"half")  # as the library's own draft
    os.kill(os.getpid(), 9)

safetensors.torch.save_file = half
write_tensors(Path(sys.argv[1]), {"a": torch.zeros(1)}, {})
"""


def test_the_draft_of_the_library_that_writes_tensors_goes_too(tmp_path, prepared):
    subprocess.run([sys.executable, "-c", SAVING, str(tmp_path / "a.bundle")], check=False)
    assert len(left_in(tmp_path)) == 1
    save_bundle(prepared, tmp_path / "a.bundle")
    assert left_in(tmp_path) == ["a.bundle"]
