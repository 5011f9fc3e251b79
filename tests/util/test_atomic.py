"""Files and folders appear whole or not at all, and nothing is left behind."""

import errno
import os
import stat
import subprocess
import sys

import pytest
import torch

from bayescal.errors import BayescalError
from bayescal.util.atomic import beside, clear_drafts, replacing, replacing_folder, write_bytes, write_text
from bayescal.util.tensor_file import write_tensors


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full_disk(*given, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_a_file(path, failure: BaseException) -> None:
    with replacing(path) as draft:
        draft.write_text("half")
        raise failure


def fill_folder(path, failure: BaseException | None = None) -> None:
    with replacing_folder(path) as draft:
        (draft / "file").write_text("new")
        if failure:
            raise failure


def test_text_is_written_as_it_is(tmp_path):
    write_text(tmp_path / "a.txt", "λ\r\nä\n")
    assert (tmp_path / "a.txt").read_bytes() == "λ\r\nä\n".encode()
    assert names(tmp_path) == ["a.txt"]


def test_a_file_that_is_there_is_replaced_and_keeps_its_content_until_then(tmp_path):
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with replacing(path) as draft:
        draft.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert draft.parent == path.parent
        assert draft.name.startswith(".")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_a_new_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    write_tensors(tmp_path / "tensors", {"a": torch.zeros(1)}, {})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours", "tensors")]
    assert modes[0] == modes[1] == modes[2]


def test_a_link_to_a_file_stays_a_link(tmp_path):
    write_text(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    (tmp_path / "dangling").symlink_to("made")
    write_tensors(tmp_path / "dangling", {"a": torch.zeros(1)}, {})
    assert (tmp_path / "real").read_text() == "new"
    assert os.readlink(tmp_path / "dangling") == "made"
    assert names(tmp_path) == ["dangling", "link", "made", "real"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, said in (("pipe", "a pipe"), ("to-pipe", "a pipe"), ("loop", "leads to itself")):
        before = os.lstat(tmp_path / name)
        with pytest.raises(BayescalError, match=f"{name} is .*{said}"):
            write_text(tmp_path / name, "new")
        with pytest.raises(BayescalError, match=f"{name} is .*{said}"):
            write_tensors(tmp_path / name, {"a": torch.zeros(1)}, {})
        assert os.lstat(tmp_path / name) == before
    assert names(tmp_path) == ["loop", "pipe", "to-pipe"]


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt(), ValueError("no number")])
def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    write_text(tmp_path / "a", "old")
    with pytest.raises(type(failure)):
        half_a_file(tmp_path / "a", failure)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_block_that_fails_before_it_writes_says_why(tmp_path):
    with pytest.raises(OSError, match="no such colour"), replacing(tmp_path / "a"):
        raise OSError("no such colour")
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_rename_or_flush_that_fails_leaves_nothing(tmp_path, monkeypatch, step):
    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "a", "new")
    assert names(tmp_path) == []


def log_of(monkeypatch, *steps: str) -> list[str]:
    """The names of these functions of `os` in the order in which they are called from now on."""
    order = []
    for step in steps:
        real = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *given, real=real, step=step: (order.append(step), real(*given))[1])
    return order


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    order = log_of(monkeypatch, "fsync", "replace")
    write_bytes(tmp_path / "a", b"new")
    assert order == ["fsync", "replace", "fsync"]  # the file, then the folder
    order.clear()
    with replacing_folder(tmp_path / "folder") as draft:
        (draft / "one").write_text("1")
        (draft / "below").mkdir()
        (draft / "below" / "two").write_text("2")
    assert order == ["fsync"] * 4 + ["replace", "fsync"]  # two files, two folders, the name


KILLED = """
import os, sys
from pathlib import Path
from bayescal.util import atomic
target = Path(sys.argv[1])
with atomic.replacing(target / "file") as draft:
    draft.write_text("half")
    with atomic.replacing_folder(target / "folder") as one, atomic.folder_beside(target / "other") as two:
        (one / "half").write_text("half")
        os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_left_goes_with_the_next_writing_and_nothing_else_does(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(names(tmp_path)) == 3
    with replacing(tmp_path / "alive") as mine:  # of this process, which lives
        mine.write_text("whole")
        dead_but_only = tmp_path / f".model.{mine.name.split('.')[2][:8]}-1-0.abcdef01.old"
        dead_but_only.mkdir()
        for name in (".cache.tmp", ".x.abcdef01.tmp", "a.tmp", ".model.checkpoints"):
            (tmp_path / name).touch()
        write_text(tmp_path / "next", "")
        kept = {".cache.tmp", ".x.abcdef01.tmp", "a.tmp", ".model.checkpoints", "next", dead_but_only.name, mine.name}
        assert set(names(tmp_path)) == kept
        (tmp_path / "model").mkdir()  # now the one that was moved away is an old one
        write_text(tmp_path / "next", "")
        assert dead_but_only.name not in names(tmp_path)
    assert (tmp_path / "alive").read_text() == "whole"


def test_a_draft_of_another_machine_is_nobodys_after_a_week(tmp_path):
    old, new = (tmp_path / f".a.00000000-1-1.abcdef0{i}.tmp" for i in range(2))
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    clear_drafts(tmp_path)
    assert names(tmp_path) == [new.name]


@pytest.mark.parametrize("letter", ["a", "é", "字"])
@pytest.mark.parametrize("size", [200, 240, 245, 250, 255])
def test_a_name_as_long_as_the_file_system_allows(tmp_path, letter, size):
    name = letter * (size // len(letter.encode()))
    write_text(tmp_path / name, "x")
    write_text(tmp_path / name, "y")
    assert (tmp_path / name).read_text() == "y"
    with replacing_folder(tmp_path / f"b{name[1:]}") as draft:
        assert draft.name.startswith(".b")
    neighbour = tmp_path / f"{name[:-1]}z"
    assert beside(neighbour, "checkpoints") != beside(tmp_path / name, "checkpoints")
    assert len(os.fsencode(beside(neighbour, "checkpoints").name)) <= 255
    assert names(tmp_path) == sorted([name, f"b{name[1:]}"])


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "above" / "folder"
    for content in ("old", "new"):
        with replacing_folder(target) as draft:
            (draft / content).write_text(content)
            assert not (target / content).exists()
    assert names(target) == ["new"]
    assert names(target.parent) == ["folder"]


def test_a_failed_folder_leaves_the_old_one_or_no_trace(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("kept")
    for target in (tmp_path / "old", tmp_path / "new" / "deep" / "folder"):
        with pytest.raises(KeyboardInterrupt):
            fill_folder(target, KeyboardInterrupt())
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old" / "file").read_text() == "kept"


def test_a_folder_whose_last_rename_fails_gives_the_old_one_back(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("kept")
    monkeypatch.setattr("bayescal.util.atomic.exchange", lambda one, other: False)
    real, calls = os.replace, []
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append(a), full_disk() if len(calls) == 2 else real(a, b)))
    with pytest.raises(OSError, match="No space"):
        fill_folder(tmp_path / "old")
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old" / "file").read_text() == "kept"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    with replacing_folder(tmp_path / "link") as draft:
        (draft / "file").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["link", "real"]
    assert names(tmp_path / "real") == ["file"]
