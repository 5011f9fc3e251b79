"""Sorting images by their answers: links, long names, failures and what a killed process left."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

import bayescal.cli.sorting as sorting
from bayescal.cli.sorting import Sorter
from bayescal.estimator.answers import Answer
from command_line import run
from layouts import tiny_png

pytestmark = pytest.mark.xdist_group("command-line")


def images(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(tiny_png(number))
    return [Answer(str(folder / name), label="dog") for name in names]


def sort(target, how, answers):
    sorter = Sorter(target, how)
    sorter.add(answers)
    return sorter


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_is_moved_leads_to_the_same_file(tmp_path, absolute):
    images(tmp_path / "all", "1.png")
    (tmp_path / "new").mkdir()
    link = tmp_path / "new" / "a.png"
    link.symlink_to(tmp_path / "all" / "1.png" if absolute else "../all/1.png")
    sorter = sort(tmp_path / "deep" / "er", "move", [Answer(str(link), label="dog")])
    moved = tmp_path / "deep" / "er" / "dog" / "a.png"
    assert moved.read_bytes() == (tmp_path / "all" / "1.png").read_bytes()
    assert not os.path.lexists(link)
    assert sorter.placed == {"dog": 1}


@pytest.mark.parametrize("how", ["copy", "move", "link"])
def test_names_as_long_as_they_may_be_are_sorted(tmp_path, how, monkeypatch):
    name = "ü" * 125 + ".png"  # 254 bytes
    one, two = images(tmp_path / "a", name), images(tmp_path / "b", name)
    (tmp_path / "b" / name).write_bytes(tiny_png(9))
    if how == "move":  # as from another disk
        monkeypatch.setattr(sorting.os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "other disk")))
    sorter = sort(tmp_path / "sorted", how, one + two)
    assert not sorter.failed
    found = sorted(path.name for path in (tmp_path / "sorted" / "dog").iterdir())
    assert found == sorted([name, "ü" * 124 + "-2.png"])


def test_an_image_that_cannot_be_sorted_stops_no_other(tmp_path, monkeypatch):
    answers = images(tmp_path / "new", "0.png", "1.png", "2.png")
    original = shutil.copy2

    def copy(source, target):
        if source.name == "1.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(source, target)

    monkeypatch.setattr(sorting.shutil, "copy2", copy)
    sorter = sort(tmp_path / "sorted", "copy", [*answers, Answer(str(tmp_path / "gone.png"), label="dog")])
    assert sorter.placed == {"dog": 2}
    assert "2 images could not be copied" in sorter.problem()
    assert "1.png: No space left on device; " in sorter.problem()
    assert "gone.png: there is no such file" in sorter.problem()
    assert sorted(path.name for path in (tmp_path / "sorted" / "dog").iterdir()) == ["0.png", "2.png"]


def test_what_a_killed_process_left_unfinished_goes_and_that_of_the_living_stays(tmp_path):
    script = (
        "import os, signal, sys; import bayescal.cli.sorting as s\n"
        "from pathlib import Path; from bayescal.estimator.answers import Answer\n"
        "s.os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "s.Sorter(Path(sys.argv[1]), 'copy').add([Answer(sys.argv[2], label='dog')])"
    )
    answers = images(tmp_path / "new", "0.png", "1.png")
    target = tmp_path / "sorted"
    killed = subprocess.run([sys.executable, "-c", script, str(target), answers[0].image], check=False)
    assert killed.returncode == -9
    (left,) = (target / "dog").iterdir()
    assert left.name.startswith(".0.png.")
    own = sorting.beside(target / "dog" / "9.png", f"{sorting.process_mark()}.0123abcd.tmp")
    own.write_bytes(b"half")
    sort(target, "copy", answers[1:])
    assert sorted(path.name for path in (target / "dog").iterdir()) == [own.name, "1.png"]


def test_an_image_given_twice_is_moved_once(tmp_path):
    (answer,) = images(tmp_path / "new", "0.png")
    sorter = sort(tmp_path / "sorted", "move", [answer, answer])
    assert sorter.said() == f"1 images moved into {tmp_path / 'sorted'} (dog 1); 1 were there already"


def test_answers_are_written_although_sorting_fails_and_before_anything_is_moved(model, shapes, tmp_path, monkeypatch):
    new = shutil.copytree(shapes / "photo" / "dog", tmp_path / "new")
    (tmp_path / "sorted").mkdir()
    for name in ("dog", "house", "unsure", "unfamiliar"):
        (tmp_path / "sorted" / name).write_bytes(b"a file where a folder is to be")
    answers = tmp_path / "answers.csv"
    result = run("predict", model, new, "--sort-into", tmp_path / "sorted", "--move", "-o", answers)
    count = len(list(new.iterdir()))
    assert result.code == 2
    assert f"{count} images could not be moved" in " ".join(result.err.split())
    assert len(answers.read_text().splitlines()) == count + 1

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bayescal.util.atomic.sync", fail)
    broken = run("predict", model, new, "--sort-into", tmp_path / "other", "--move", "-o", tmp_path / "b.csv")
    assert broken.code == 2
    assert "could not write" in broken.err
    assert len(list(new.iterdir())) == count
