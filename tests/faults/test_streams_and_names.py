"""Names from anywhere, outputs that cannot take them: no escape sequence reaches a terminal, nothing ends in a bug."""

import io
import json
import os
import subprocess
import sys

import pytest

from bayescal.cli import screen
from bayescal.util.console import console, harmless
from command_line import fit, refused, run

HOSTILE = ("\x1b[2J\x1b[31mred", "[/red]", "[bold]x", "a\rb", "\x9b31m", "x\u202egpj", "\x07", "=1+1")


def test_no_name_drives_a_terminal():
    stream = io.StringIO()
    shown = console(file=stream, force_terminal=True, width=200)
    table = screen.plain_table("name")
    for name in HOSTILE:
        shown.print(name)
        table.add_row(name)
    shown.print(table)
    text = stream.getvalue()
    for forbidden in ("\x1b[2J", "\x1b[31m", "\x9b", "\u202e", "\x07", "a\rb"):
        assert forbidden not in text
    assert "␛[2J␛[31mred" in text
    assert "[/red]" in text


def test_any_letters_are_harmless(r, rounds):
    for _ in range(200 * rounds):
        name = "".join(chr(r.choice((r.randrange(0x100), r.randrange(0x2000, 0x2070)))) for _ in range(20))
        safe = harmless(name.replace("\r\n", ""))
        assert len(safe) == len(name.replace("\r\n", ""))
        assert not any(ord(letter) < 0x20 and letter not in "\t\n" for letter in safe)
        assert "\x1b" not in safe


def test_results_go_to_a_terminal_harmless_and_to_a_pipe_as_they_are(monkeypatch):
    for is_terminal, expected in ((True, "␛[2J,1\r\n"), (False, "\x1b[2J,1\r\n")):
        stream = io.StringIO(newline="")
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        screen.emit("\x1b[2J,1\r\n")
        assert stream.getvalue() == expected


PROGRAM = """
import os, sys
how = sys.argv[1]
if how == "closed":
    sys.stdout = None
from bayescal.cli import streams, screen
streams.prepare()
print({"path": 1} and '["é \\u2013 \\U0001f600 \\udcff"]')
if how == "gone":
    import tempfile
    os.chdir(folder := tempfile.mkdtemp()); os.rmdir(folder)
    from bayescal.cli import main
    main(["methods"])
"""


@pytest.mark.parametrize(
    ("how", "encoding"), [("open", "ascii"), ("open", "latin-1"), ("open", "utf-8"), ("closed", "ascii")]
)
def test_every_output_takes_every_name(how, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    if how == "open":
        assert json.loads(done.stdout.decode(encoding)) == ["é – 😀 \udcff"]  # JSON stays JSON


def test_a_current_folder_that_is_gone_is_one_sentence(tmp_path, monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    refused(run("methods"), "does not exist any more", "cd")


@pytest.mark.parametrize("seed", [2**63, 10**400])
def test_a_seed_that_is_too_large(tmp_path, data, seed):
    result = run("fit", data, "-o", tmp_path / "model", "--seed", seed)
    assert result.code == 2
    assert "Traceback" not in result.err


def test_numbers_that_cannot_be(tmp_path, data):
    learn = [data, tmp_path / "model", "--method", "coop"]
    refused(fit(*learn, "--set", "learning_rate=-1"), "learning_rate=-1", "not negative")
    assert fit(*learn, "--set", f"learning_rate={'9' * 6000}").code == 2
    (tmp_path / "words.json").write_text("[" * 100_000)
    refused(run("fit", data, "-o", tmp_path / "m", "--class-words", tmp_path / "words.json"), "nested too deeply")
    (tmp_path / "words.json").write_bytes(b'{"dog": "\xff"}')
    refused(run("fit", data, "-o", tmp_path / "m", "--class-words", tmp_path / "words.json"), "UTF-8")
