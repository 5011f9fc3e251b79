"""Values that no command can use: a sentence and exit code 2, before any work and without a traceback."""

import json

import pytest

from command_line import left_in, run

DIGITS = "9" * 6000
TEXTS = {
    "surrogate.json": '{"images": [{"path": "\\ud800.png", "class": "dog"}]}',
    "deep.json": '{"images": ' + "[" * 100_000,
    "digits.json": '{"images": [{"path": "DOG", "class": ' + DIGITS + "}]}",
    "words.json": '{"dog": "\\ud800"}',
    "name.json": '{"images": [{"path": "DOG", "class": "\\udcff"}, {"path": "HOUSE", "class": "x"}]}',
}
BYTES = {"surrogate.csv": b"path,class\nDOG,\xed\xa0\x80\n", "nul.csv": b"path,class\na\0b.png,dog\n"}
ODD = [
    *(["fit", "DATA", "-o", "m", option, DIGITS] for option in ("--seed", "--shots", "--members", "--trials")),
    *(["fit", "DATA", "-o", "m", "--method", "coop", "--set", f"{name}={value}"] for name, value in (
        ("epochs", DIGITS), ("epochs", "1e400"), ("epochs", -1), ("epochs", "NaN"), ("learning_rate", "Infinity"),
        ("n_context", "9" * 30), ("n_context", -2), ("epochs", "[" * 10_000),
    )),
    *(["fit", name, "-o", "m"] for name in (*TEXTS, *BYTES) if name != "words.json"),
    ["fit", "DATA", "-o", "m", "--class-words", "words.json"],
    ["fit", "DATA", "-o", "m" * 256],
    ["fit", "DATA", "-o", "a\0b"],
    ["fit", "a\0b", "-o", "m"],
    ["fit", "DATA", "-o", "m", "--layout", "\0"],
    ["fit", "DATA", "-o", "m", "--backbone", "RN50:" + "x" * 300],
    ["fit", "DATA", "-o", "m", "--backbone", "RN50:a\0b"],
    ["fit", "DATA", "-o", "m", "--device", f"cuda:{DIGITS}"],
    ["predict", "m" * 300, "DATA"],
    ["predict", "MODEL", "DATA", "-o", "m" * 252 + ".csv"],
    ["evaluate", "MODEL", "DATA", "-o", "m" * 256],
    ["export", "m" * 300, "-o", "e"],
    ["suggest", "MODEL", "DATA", "-n", 2**70],
    *(["bench", "main", "--data", "x=DATA", *more] for more in (
        ["--seeds", DIGITS], ["--seeds", "1," + "9" * 30], ["-o", "y" * 256], ["-o", "a\0b"], ["--storage", "\0"],
        ["--storage", "sqlite:///" + "y" * 300],
    )),
    ["bench", "main", "--data", "x=\0"],
    ["report", "r" * 5000],
    ["records", "r" * 300],
    ["records", "--add", "r" * 300],
    ["data", "check", "z" * 300],
    ["data", "check", "surrogate.json"],
    ["data", "pack", "x", "--from", "DATA", "-o", "p" * 300 + ".bundle", "--shots", 1, "--val-shots", 1],
    ["data", "prepare", "pacs", "--from", "e" * 300],
    ["data", "make-ccd", "--from", "DATA", "-o", "ccd", "--seed", 2**64],
]  # fmt: skip


@pytest.mark.parametrize("command", ODD, ids=lambda command: " ".join(repr(word)[:14] for word in command))
def test_what_cannot_be_is_said(tmp_path, data, shapes, model, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    dog, house = (str(next((shapes / "photo" / name).iterdir())) for name in ("dog", "house"))
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text.replace('"DOG"', json.dumps(dog)).replace('"HOUSE"', json.dumps(house)))
    for name, content in BYTES.items():
        (tmp_path / name).write_bytes(content.replace(b"DOG", dog.encode()))
    before = left_in(tmp_path)
    places = {"DATA": str(data), "MODEL": str(model), "x=DATA": f"x={data}"}
    result = run(*(places.get(word, word) for word in command))
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert "Error" in result.err
    assert left_in(tmp_path) == before
