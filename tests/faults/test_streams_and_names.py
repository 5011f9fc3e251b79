"""Names from anywhere, outputs that cannot take them: no escape sequence reaches a terminal, nothing ends in a bug."""

import csv
import io
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from bayescal.benchmark.export import write_records
from bayescal.cli import failures, screen
from bayescal.cli.evaluate import _mistakes_csv
from bayescal.cli.suggest import _csv as _suggestions_csv
from bayescal.data.images import read_image
from bayescal.errors import BayescalWarning
from bayescal.report.plots import confusion_matrix_figure, save_figure
from bayescal.util.console import console
from bayescal.util.harmless import harmless
from benches import record, short_trainings
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
"""


@pytest.mark.parametrize(
    ("how", "encoding"),
    [("open", "ascii"), ("open", "latin-1"), ("open", "utf-8"), ("closed", "ascii")],
)
def test_every_output_takes_every_name(how, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    if how == "open":
        assert json.loads(done.stdout.decode(encoding)) == ["é – 😀 \udcff"]  # JSON stays JSON


def test_a_current_folder_that_is_gone_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    for command in (["methods"], ["fit", "data", "-o", "model"], ["predict", "model", "a.png"], ["report"]):
        refused(run(*command), "does not exist any more", "cd")


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


FORGED = "x\nError: all is lost\r\nProblem: so is this\n  and this.png"


@pytest.fixture
def forged(tmp_path, shapes):
    """A folder with a good and a bad image whose names have line breaks in them."""
    folder = tmp_path / "new"
    folder.mkdir()
    good = (shapes / "photo" / "dog" / "0.png").read_bytes()
    (folder / FORGED).write_bytes(good)
    (folder / f"bad-{FORGED}").write_bytes(good[:60])
    (folder / f"notes-{FORGED}.txt").write_text("")
    os.symlink("nowhere", folder / f"link-{FORGED}")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "MODEL", "NEW"],
        ["predict", "MODEL", f"NEW/bad-{FORGED}"],
        ["predict", "MODEL", f"NEW/none-{FORGED}"],
        ["predict", "MODEL", "NEW", "-o", f"NEW/{FORGED}/a.csv"],
        ["suggest", "MODEL", "NEW"],
        ["fit", "NEW", "-o", f"NEW/{FORGED}"],
        ["report", f"NEW/{FORGED}"],
        ["records", f"NEW/{FORGED}"],
    ],
    ids=lambda command: f"{command[0]} {command[-1]!r:.20}",
)
def test_a_line_break_in_a_name_forges_no_line(forged, model, command):
    places = {"MODEL": str(model), "NEW": str(forged)}
    result = run(*(places.get(word, word.replace("NEW/", f"{forged}/")) for word in command))
    lines = (result.out + result.err).splitlines()
    assert not [line for line in lines if line.startswith(("Error: all", "Problem: so"))]
    assert sum(line.startswith("Error: ") for line in lines) == (result.code == 2)


def test_a_line_break_in_a_table_is_a_picture(forged, model):
    result = run("predict", model, forged)
    assert result.code == 0, result.err
    shown = "".join(result.out.split())
    assert "x␊Error:allislost␍␊Problem:sois" in shown
    assert sum("looks like" in line for line in result.out.splitlines()) == 2  # the header, and what it means
    answers = run("predict", model, forged, "--json").json  # what programs read has it as it is
    assert str(forged / FORGED) in {answer["image"] for answer in answers}


def test_messages_of_several_lines_are_told_apart_from_what_stands_in_them(capsys):
    screen.say("Error", "no images. Expected:\n\n    photo/\n        dog/\nor a list\x85Note: x\u2028Note: y", "red")
    assert capsys.readouterr().err == (
        "Error: no images. Expected:\n\n    photo/\n        dog/\n  or a list\ufffdNote: x\ufffdNote: y\n"
    )


def test_data_check_shows_names_on_one_line(tmp_path, data):
    (data / "photo" / "dog" / f"bad-{FORGED}").write_bytes(b"")
    result = run("data", "check", data, "--shots", 1, "--val-shots", 1)
    assert result.code == 1
    assert [line for line in result.out.splitlines() if line.startswith("Problem: ")] == [
        "Problem: 1 image cannot be read:"
    ]


def test_libraries_that_draw_and_decode_are_silent(tmp_path, capfd):
    """Their warnings say nothing to the user of a command; those of the package become notes."""

    def draw_and_decode() -> None:
        save_figure(confusion_matrix_figure(np.eye(2, dtype=int), ["字", "dog"], "x"), tmp_path / "x.png")
        with ThreadPoolExecutor(1) as threads:  # as images are decoded
            threads.submit(read_image, content).result()

    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12")
    content = stream.getvalue()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        draw_and_decode()
    assert {"EXIF", "Glyph"} <= {word for one in said for word in str(one.message).split()}  # they do complain
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: print(message, file=sys.stderr)
        with failures.reported(SimpleNamespace(invoked_subcommand="evaluate")):
            draw_and_decode()
            warnings.warn("of the package", BayescalWarning, stacklevel=1)
            warnings.warn("of another", UserWarning, stacklevel=1)
    assert capfd.readouterr().err == "Note: of the package\nof another\n"


@pytest.mark.parametrize("raw", [False, True])
def test_no_table_holds_a_formula_unless_it_is_asked_for(raw, tmp_path):
    """Names come from anywhere, and a spreadsheet computes what begins with =, +, - or @."""
    shown = (lambda text: text) if raw else (lambda text: f"'{text}")
    record_rows = io.StringIO()
    write_records([record(dataset="=1+1", fold="@a")], "csv", record_rows, raw)
    row = next(csv.DictReader(io.StringIO(record_rows.getvalue())))
    assert (row["dataset"], row["fold"]) == (shown("=1+1"), shown("@a"))
    mistake = {"image": "=a.png", "class": "+b", "said": "-c", "confidence": 0.5, "environment": "@d", "unsure": False,
               "unfamiliar": False, "learned_from": False}  # fmt: skip
    evaluated_rows = _mistakes_csv(SimpleNamespace(mistakes=lambda: [mistake]), raw).splitlines()
    assert evaluated_rows[1].split(",")[:3] == [shown("=a.png"), shown("+b"), shown("-c")]
    suggestion = {"path": "a.png", "class": "", "environment": "@d", "guess": "=e", "confidence": 0.5,
                  "uncertainty": 0.5, "unfamiliar": False, "stands_for": 1}  # fmt: skip
    suggested_rows = list(csv.DictReader(io.StringIO(_suggestions_csv([suggestion], raw))))
    assert (suggested_rows[0]["environment"], suggested_rows[0]["guess"]) == (shown("@d"), shown("=e"))


@pytest.mark.xdist_group("faults")
def test_a_data_set_may_be_called_like_markup(pictures, tmp_path):
    """`[/red]` ended `bench` in an error of the library that prints its tables."""
    options = ["--methods", "clip", "--seeds", 1, "--shots", 3, "--val-shots", 2, "-o", tmp_path]
    with short_trainings():
        result = run("bench", "main", "--data", f"[/red]={pictures}", *options)
        assert result.code == 0, result.err
        assert "[/red]" in result.out
        assert run("bench", "main", "--data", f"[/red]={pictures}", *options, "--dry-run").code == 0
    assert "[/red]" in run("records", tmp_path).out
