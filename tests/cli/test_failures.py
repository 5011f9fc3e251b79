"""How commands end: every kind of exception, notes, and a reader that has enough."""

import errno
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import typer
from safetensors import SafetensorError

from bayescal.cli import failures
from bayescal.errors import BayescalError, BayescalWarning, DataError

pytestmark = pytest.mark.xdist_group("command-line")


def end_with(error: BaseException, command: str = "fit") -> int:
    with pytest.raises(typer.Exit) as end, failures.reported(SimpleNamespace(invoked_subcommand=command)):
        raise error
    return end.value.exit_code


def test_an_error_of_the_user_is_one_message_without_traceback(capsys):
    assert end_with(DataError("the folder [red]x[/red] is empty")) == 2
    shown = capsys.readouterr()
    assert shown.err == "Error: the folder [red]x[/red] is empty\n"  # brackets in file names are not markup
    assert shown.out == ""


def test_debug_shows_where_it_came_from(capsys, monkeypatch):
    monkeypatch.setenv("BAYESCAL_DEBUG", "1")
    assert end_with(BayescalError("no")) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "Error: no" in shown


@pytest.mark.parametrize(
    ("command", "message"),
    [("fit", "interrupted; the same command continues\n"), ("methods", "interrupted\n")],
)
def test_interruption_is_one_sentence(capsys, command, message):
    assert end_with(KeyboardInterrupt(), command) == 130
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/model"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_said_to_be_full(capsys, error):
    assert end_with(error) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Error: the disk is full")
    assert "Traceback" not in shown
    if isinstance(error, OSError):
        assert "/data/model" in shown


def test_a_forbidden_file_is_named(capsys):
    assert end_with(PermissionError(errno.EACCES, "Permission denied", "/root/x")) == 2
    assert capsys.readouterr().err == "Error: /root/x: Permission denied\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), FileNotFoundError(errno.ENOENT, "gone", "x")])
def test_anything_else_is_a_bug_and_shows_its_traceback(capsys, error):
    assert end_with(error) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "report" in shown


def test_exit_codes_of_commands_pass_through():
    assert end_with(typer.Exit(7)) == 7


def test_warnings_become_notes_once_each(capsys):
    with failures.reported(SimpleNamespace(invoked_subcommand="fit")):
        for _ in range(2):
            warnings.warn("skipped 3 images", BayescalWarning, stacklevel=1)
    assert capsys.readouterr().err == "Note: skipped 3 images\n"


def test_a_flood_of_notes_is_cut_with_a_count(capsys):
    with failures.reported(SimpleNamespace(invoked_subcommand="fit")):
        for i in range(failures.SHOWN_NOTES + 5):
            warnings.warn(f"class {i}", BayescalWarning, stacklevel=1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == failures.SHOWN_NOTES + 1
    assert lines[-1] == "Note: and 5 more like these"


def test_warnings_of_others_stay_warnings(capsys):
    with (
        pytest.warns(RuntimeWarning, match="overflow"),
        failures.reported(SimpleNamespace(invoked_subcommand="fit")),
    ):
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
    assert "Note" not in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_error():
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "bayescal", "methods"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
        )
    finally:
        os.close(write)
    assert result.returncode == 1
    assert result.stderr == ""
