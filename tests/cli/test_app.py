"""The frame around the commands: help, version, speed of starting, usage errors."""

import os
import subprocess
import sys

import pytest

import bayescal
from command_line import run

pytestmark = pytest.mark.xdist_group("command-line")
COMMANDS = (
    "fit", "predict", "evaluate", "suggest", "add",
    "report", "methods", "backbones", "bench", "records", "demo", "data",
)  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120)


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = """
import sys, time
from bayescal.cli import main
try:
    main(["fit", "--help"])
except SystemExit:
    pass
heavy = {"torch", "numpy", "PIL", "open_clip", "sklearn", "matplotlib"} & set(sys.modules)
print("HEAVY", heavy, time.process_time())
"""
    result = python("-c", code)
    assert "HEAVY set()" in result.stdout, result.stderr
    assert float(result.stdout.split()[-1]) < 1.5  # 0.3 s of computing; torch alone would take longer than this bound


def test_python_dash_m_is_the_same_program():
    result = python("-m", "bayescal", "--version")
    assert (result.returncode, result.stdout) == (0, f"bayescal {bayescal.__version__}\n")
    assert "Usage: bayescal " in python("-m", "bayescal", "predict", "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command):
    result = run(command, "--help")
    assert result.code == 0
    assert "Examples" in result.out
    assert f"bayescal {command}" in result.out.partition("Examples")[2]


def test_help_lists_every_command():
    result = run("--help")
    assert result.code == 0
    assert all(f" {command} " in result.out for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fitt"], "fitt"),
        (["fit"], "DATA"),
        (["fit", "folder"], "output"),
        (["fit", "folder", "-o", "m", "--shots", "0"], "shots"),
        (["fit", "folder", "-o", "m", "--colour", "red"], "--colour"),
        (["predict", "model"], "IMAGES"),
    ],
)
def test_wrong_usage_is_answered_with_exit_code_2(arguments, named):
    result = run(*arguments)
    assert result.code == 2
    assert named in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "folder", "-o", "m", "--draws", "5"], "Error: --draws is called --samples now\n"),
        (["bench", "main", "--data", "folder", "--rows=8"], "Error: --rows is called --max-runs now\n"),
        (["bench", "main", "--data", "folder", "--draws", "5"], "No such option: --draws"),  # it never had it
    ],
)
def test_old_words_are_answered_with_the_new_one(arguments, message):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err == message or (not message.endswith("\n") and message in result.err)
