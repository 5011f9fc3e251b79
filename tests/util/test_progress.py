"""The bar: on stderr, with what it was told, and silent unless asked for."""

import sys

import pytest
from rich.console import Console

from bayescal.util import progress
from bayescal.util.progress import Bar, progress_bar, watched


def work(bar: Bar) -> None:
    bar.advance(3)
    bar.say("loss 0.123")
    bar.rename("other [title]", 8)
    bar.advance()


def test_without_a_title_nothing_is_shown(capfd):
    with progress_bar(None, 10) as bar:
        assert not bar.shown
        work(bar)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "6/8"),
        ({"unit": "steps"}, "6/8 steps"),
        ({"amount": "percent"}, "75 %"),
        ({"amount": "bytes"}, "6/8 bytes"),
        ({"unit": "images", "speed": True}, "images/s"),
    ],
)
def test_what_stands_in_the_line(capsys, options, expected):
    with progress_bar("title", 10, done=2, transient=False, **options) as bar:
        assert bar.shown
        work(bar)
    out, shown = capsys.readouterr()
    assert out == ""  # stdout is for results
    for words in (expected, "other [title]", "loss 0.123", "left"):
        assert words in shown


def test_on_a_terminal_it_is_gone_when_it_is_done(monkeypatch, tmp_path):
    with open(tmp_path / "terminal", "w+", encoding="utf-8") as terminal:
        console = Console(file=terminal, force_terminal=True, width=100, markup=False)
        monkeypatch.setattr(progress, "messages", lambda: console)
        with progress_bar("title", 2) as bar:
            bar.advance(2)
        terminal.seek(0)
        written = terminal.read()
    assert "title" in written
    assert written.endswith("\x1b[1A\x1b[2K")  # up one line, which is cleared


def test_in_a_file_a_bar_that_goes_leaves_nothing(capsys):
    with progress_bar("title", 2) as bar:
        bar.advance(2)
    assert capsys.readouterr().err.strip() == ""


def test_without_rich_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    with progress_bar("title", 2) as bar:
        assert not bar.shown
        bar.advance(2)
    assert capsys.readouterr() == ("", "")


def test_who_watches_is_told_in_place_of_the_terminal(capfd):
    told = []
    with watched(lambda *heard: told.append(heard)), progress_bar("title", 10, done=1) as bar:
        work(bar)
        with progress_bar(None, 3) as silent:
            silent.advance()
    assert told == [("title", 1, 10), ("title", 4, 10), ("other [title]", 4, 8), ("other [title]", 5, 8)]
    assert capfd.readouterr() == ("", "")


def test_who_watches_can_stop_the_work():
    def enough(title, done, total):
        if done > 2:
            raise KeyboardInterrupt

    with watched(enough), progress_bar("title", 10) as bar:
        bar.advance(2)
        with pytest.raises(KeyboardInterrupt):
            bar.advance()
