"""Pipes, devices and links where files are expected: nothing waits without end, and no file takes their place."""

import os
import shutil
import signal

import pytest

from command_line import left_in, refused, run
from old_files import OLD

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
PATIENCE = 60  # seconds


@pytest.fixture
def place(tmp_path, model):
    """A folder with a pipe in the place of every file that a command reads; whoever waits for one is woken."""
    for name in ("pipe", "list.csv", "list.json", "records.json", "words.json", "a.bundle", "x.png"):
        os.mkfifo(tmp_path / name)
    for name in ("config.json", "model.safetensors"):
        shutil.copytree(model, tmp_path / f"no-{name}")
        (tmp_path / f"no-{name}" / name).unlink()
        os.mkfifo(tmp_path / f"no-{name}" / name)
    shutil.copytree(OLD / "results" / "sections", tmp_path / "results" / "sections")
    os.mkfifo(tmp_path / "results" / "sections" / "more.json")

    def wake(*given) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(PATIENCE)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


READING = [
    ["predict", "no-config.json", "DATA"],
    ["predict", "no-model.safetensors", "DATA"],
    ["predict", "MODEL", "x.png"],
    ["fit", "list.csv", "-o", "new"],
    ["fit", "list.json", "-o", "new"],
    ["fit", "DATA", "-o", "new", "--class-words", "words.json"],
    ["evaluate", "MODEL", "list.csv"],
    ["add", "MODEL", "list.csv", "-o", "new"],
    ["data", "check", "list.json"],
    ["bench", "main", "--data", "a.bundle"],
    ["records", "elsewhere", "--add", "records.json"],
]
WRITING = [
    ["predict", "MODEL", "DATA", "--csv", "-o", "pipe"],
    ["predict", "MODEL", "DATA", "--csv", "-o", "to-pipe"],
    ["predict", "MODEL", "DATA", "--csv", "-o", "loop"],
    ["fit", "DATA", "-o", "pipe", "--force"],
    ["evaluate", "MODEL", "DATA", "-o", "pipe"],
    ["export", "MODEL", "-o", "pipe", "--force"],
    ["report", "OLD", "-o", "pipe", "--force"],
]


@pytest.mark.parametrize("command", READING + WRITING, ids=" ".join)
def test_what_is_no_file_is_a_sentence_and_stays(place, shapes, model, monkeypatch, command):
    monkeypatch.chdir(place)
    os.symlink("pipe", "to-pipe")
    os.symlink("loop", "loop")
    before = left_in(place)
    places = {"DATA": shapes, "MODEL": model, "OLD": OLD / "results"}
    refused(run(*(places.get(word, word) for word in command)))
    assert left_in(place) == before
    assert (place / "pipe").is_fifo()


def test_a_result_that_is_a_pipe_is_named_and_left_out(place, tmp_path):
    result = run("report", place / "results", "-o", tmp_path / "report.html")
    assert result.code == 0, result.err
    assert f"{place / 'results' / 'sections' / 'more.json'}: cannot be read (it is a pipe" in result.err
