"""docs/architecture.md is about this tree: its rooms are the folders, and its walks are what the commands do."""

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import bayescal
from command_line import fit, make_shapes, run

PACKAGE = Path(bayescal.__file__).parent
DOCS = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^### `bayescal (\w+)[^\n]*\n(.*?)(?=^##)", DOCS, flags=re.MULTILINE | re.DOTALL))
LINE = re.compile(r"^( *)- `([\w.]+)`", flags=re.MULTILINE)


def lines(command: str) -> list[tuple[int, str]]:
    """Depth and name of each line of a walk."""
    return [(len(indent) // 2, name) for indent, name in LINE.findall(WALKS[command])]


def code_of(name: str) -> CodeType:
    function = pkgutil.resolve_name(f"bayescal.{name}")
    return inspect.unwrap(getattr(function, "__func__", function)).__code__


def calls_of(command: Callable[[], Any], codes: set[CodeType]) -> set[tuple[CodeType | None, CodeType]]:
    """(above, below): `below` was called while `above` was running; above is None for each that was called at all."""
    found: set[tuple[CodeType | None, CodeType]] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and (below := frame.f_code) in codes:
            found.add((None, below))
            while (frame := frame.f_back) is not None:
                if frame.f_code in codes:
                    found.add((frame.f_code, below))

    sys.setprofile(note)
    try:
        command()
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def commands(folder):
    """Each command on a few images, as a function."""
    shapes, model = make_shapes(folder / "shapes", n=4), folder / "model"
    assert fit(shapes, model, "--method", "bayes-cal").code == 0
    methods = ["--methods", "bayes-cal", "--trials", 1, "--seeds", "1"]
    few = ["--shots", 2, "--val-shots", 2, "-o", folder / "results"]
    return {
        "fit": lambda: fit(shapes, folder / "again", "--method", "bayes-cal", "--cache", folder / "empty"),
        "predict": lambda: run("predict", model, shapes / "photo"),
        "bench": lambda: run("bench", "main", "--data", f"shapes={shapes}", *methods, *few),
    }


@pytest.fixture(scope="module", autouse=True)
def _own_cache(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESCAL_CACHE", str(folder / "cache"))
        yield


def test_the_table_of_rooms_names_every_folder():
    table = DOCS.partition("## Rooms")[2].partition("## ")[0]
    rooms = re.findall(r"^\| `(\w+)/` \| [^|]+ \|$", table, flags=re.MULTILINE)
    folders = [
        entry.name for entry in os.scandir(PACKAGE) if entry.is_dir() and (PACKAGE / entry / "__init__.py").is_file()
    ]
    assert sorted(rooms) == sorted(folders)
    assert len(list(PACKAGE.glob("*.py"))) <= 4, "loose modules in the root"


@pytest.mark.parametrize("command", ["fit", "predict", "bench"])
def test_a_walk_is_what_the_command_does(command, commands):
    walk = lines(command)
    said = re.match(r"\s*(\d+) functions in (\d+) files", WALKS[command])
    modules = {code_of(name).co_filename for _, name in walk}
    assert said is not None
    assert [int(number) for number in said.groups()] == [len({name for _, name in walk}), len(modules)]

    ended = []
    found = calls_of(lambda: ended.append(commands[command]()), {code_of(name) for _, name in walk})
    assert ended[0].code == 0, ended[0].err
    above: list[str] = []
    for depth, name in walk:
        above[depth:] = [name]
        pair = (code_of(above[-2]) if depth else None, code_of(name))
        assert pair in found, f"{name} is not called by {above[-2] if depth else 'the command'}"


def test_every_name_beside_a_shape_exists():
    table = DOCS.partition("## One image, with shapes")[2].partition("\n## ")[0]
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    for cell in re.findall(r"^\| [^|]+ \| ([^|]+) \|", table, flags=re.MULTILINE):
        for name in re.findall(r"`([\w.]+)`", cell):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", source), name
