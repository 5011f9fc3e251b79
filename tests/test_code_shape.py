"""The code keeps its shape: functions that fit on a screen, and no deep nesting."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bayescal

ROOT = Path(bayescal.__file__).parent
LONGEST = 60  # lines of a function
DEEPEST = 4  # blocks inside one another
NESTING = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def depth(node: ast.AST, above: int = 0) -> int:
    """How many blocks stand inside one another; a function or class inside counts for itself, `elif` as its `if`."""
    deepest = above
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, depth(child, above + (isinstance(child, NESTING) and not is_elif)))
    return deepest


def functions() -> Iterator[tuple[str, Function, bool]]:
    """Every function with where it stands, and whether it is a command, whose options take a line each."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = path.relative_to(ROOT).as_posix()
                options = [a for a in node.args.args if a.annotation and "typer." in ast.unparse(a.annotation)]
                yield f"{name}:{node.lineno} {node.name}", node, name.startswith("cli/") and bool(options)


def test_functions_fit_on_a_screen():
    """All but commands, whose options are their parameters."""
    lines = {
        where: (function.end_lineno or 0) - function.lineno + 1
        for where, function, is_command in functions()
        if not is_command
    }
    assert len(lines) > 1000
    assert {where: n for where, n in lines.items() if n > LONGEST} == {}


def test_blocks_do_not_nest_deeply():
    depths = {where: depth(function) for where, function, _ in functions()}
    assert max(depths.values()) > 1
    assert {where: n for where, n in depths.items() if n > DEEPEST} == {}


def test_depth_is_counted_as_a_reader_sees_it():
    text = "def f():\n for a in b:\n  if a: pass\n  elif b: pass\n  elif c:\n   with d: pass\n def g():\n  if a: pass"
    assert depth(ast.parse(text).body[0]) == 3


# --- who imports what ------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of every `from … import …`, those inside functions too, and not those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            yield from ((child.module, alias.name) for alias in child.names)
        yield from imports(child)


def test_private_names_stay_in_their_module():
    speed = (path for path in (ROOT.parents[1] / "speed").glob("*.py"))
    trees = MODULES | {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in speed}
    found = {name: list(imports(tree)) for name, tree in trees.items()}
    assert sum(map(len, found.values())) > 1500
    private = {
        f"{name}: {module}.{taken}"
        for name, all_imports in found.items()
        for module, taken in all_imports
        if module.split(".")[0] in ("bayescal", "speed") and taken.startswith("_") and taken != "__version__"
    }
    assert private == set()


def test_modules_do_not_import_each_other():
    """In no circle, lazily or not. The root is the shop window: it shows names of all."""
    graph = {
        name: {f"{m}.{taken}" if f"{m}.{taken}" in MODULES else m for m, taken in imports(tree)} & MODULES.keys()
        for name, tree in MODULES.items()
    }
    left = {name: needs - {"bayescal", name} for name, needs in graph.items() if name != "bayescal"}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert left == {}


# --- comments --------------------------------------------------------------------------------------------------------


def test_files_that_a_comment_names_exist():
    """A comment that names a file that has moved leads nowhere."""
    folders = [ROOT.parents[1] / name for name in ("src", "tests", "speed", "runtime")]
    known = ["/" + path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    elsewhere = {"domainbed/scripts/download.py", "plotly.py"}  # of other projects
    lost = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in ROOT.rglob("*.py")
        for name in re.findall(r"(?<![\w/.])((?:[\w-]+/)*[\w-]+\.py)\b", path.read_text(encoding="utf-8"))
        if name not in elsewhere and not any(other.endswith(f"/{name}") for other in known)
    }
    assert lost == set()
