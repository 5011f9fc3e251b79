"""A folder replaced by another is there at every moment, or is put back by whoever comes next."""

import contextlib
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest
from test_atomic import names

from bayescal.errors import ArtifactError
from bayescal.estimator.artifact import check_output, read_artifact
from bayescal.util import atomic
from bayescal.util.atomic import beside, clear_drafts, finish_replacing, replacing_folder
from bayescal.util.exchange import exchange

linux = pytest.mark.skipif(sys.platform != "linux", reason="kills itself in a fork; exchanges names")
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"}


def folder(path: Path, content: str) -> None:
    with replacing_folder(path) as draft:
        (draft / "one").write_text(content)
        (draft / "two").write_text(content)


def killed_at(step: int, path: Path) -> bool:
    """Replace the folder in another process that kills itself before this step; whether it came so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        left = [step]

        def count(event: str, _: tuple) -> None:
            if event in EVENTS:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            folder(path, "new")
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def content(path: Path) -> set[str]:
    assert names(path) == ["one", "two"]
    return {(path / name).read_text() for name in ("one", "two")}


def kept_whole(path: Path, finish) -> list[bool]:
    """Kill a replacement at each of its steps; whether the folder was gone between the kill and what finishes it."""
    gone, found = [], set()
    for step in range(200):
        folder(path, "old")
        killed = killed_at(step, path)
        gone.append(not path.exists())
        finish(path)
        now = content(path)
        assert len(now) == 1, "neither the old one nor the new one, but something of both"
        found |= now
        if not killed:
            break
        clear_drafts(path.parent)
        assert names(path.parent) == [path.name]
    assert not killed
    assert len(gone) > 10
    assert found == {"old", "new"}
    return gone


@linux
def test_a_kill_at_any_step_leaves_a_whole_folder_where_names_can_be_exchanged(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system exchanges no names")
    assert not any(kept_whole(tmp_path / "models" / "model", lambda path: None))


@linux
@pytest.mark.parametrize("name", ["model", "m" * 250], ids=["short", "long"])
def test_where_they_cannot_the_next_command_puts_the_old_one_back(tmp_path, monkeypatch, name):
    monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    assert any(kept_whole(tmp_path / "models" / name, finish_replacing))


def test_exchanged_names(tmp_path):
    (tmp_path / "a").mkdir()
    assert not exchange(tmp_path / "a", tmp_path / "missing")
    (tmp_path / "b").write_text("b")
    if exchange(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "b").is_dir()
    else:
        assert (tmp_path / "a").is_dir()


def retired(path: Path, mark: str) -> Path:
    """The folder as a process left it that died between two renames."""
    hidden = beside(path, f"{mark}.abcdef01.old")
    os.rename(path, hidden)
    return hidden


def dead_mark() -> str:
    return f"{atomic.process_mark().split('-')[0]}-1-0"


@pytest.mark.parametrize("finish", [read_artifact, lambda path: check_output(path, True), finish_replacing])
def test_what_reads_or_writes_a_model_finishes_a_replacement(tmp_path, finish):
    folder(tmp_path / "model", "old")
    (tmp_path / "link").symlink_to(tmp_path / "model", target_is_directory=True)
    for path in (tmp_path / "model", tmp_path / "link"):
        retired(tmp_path / "model", dead_mark())
        with contextlib.suppress(ArtifactError):  # it holds no model, but it is there again
            finish(path)
        assert content(tmp_path / "model") == {"old"}


def test_what_a_living_process_moved_and_what_is_anothers_stays(tmp_path):
    for mark, path in ((atomic.process_mark(), tmp_path / "model"), (dead_mark(), tmp_path / "other")):
        folder(path, "old")
        retired(path, mark)
    finish_replacing(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    stranger = "00000000-1-1"  # of another machine: a moment ago it may have been between two renames
    folder(tmp_path / "third", "old")
    retired(tmp_path / "third", stranger)
    finish_replacing(tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_of_another_machine_it_is_put_back_after_a_pause(tmp_path, monkeypatch):
    folder(tmp_path / "model", "old")
    retired(tmp_path / "model", "00000000-1-1")
    monkeypatch.setattr(atomic, "PAUSE", -1.0)
    finish_replacing(tmp_path / "model")
    assert content(tmp_path / "model") == {"old"}
