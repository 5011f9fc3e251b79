"""The code keeps its shape: functions that fit on a screen, and no deep nesting."""

import ast
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
