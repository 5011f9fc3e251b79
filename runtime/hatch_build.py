"""Cuts out of the package `bayescal` what the runtime needs of it: some modules and all that they import.

They become `bayescal_runtime._bayescal`, with their imports changed to that name, so that images are read, resized and
answered by the same lines in both distributions and nothing is written twice. A source distribution carries the result.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WHOLE, PART = "bayescal", "bayescal_runtime._bayescal"
NEEDED = (
    "data.file_tree",
    "data.sources",
    "data.transforms",
    "errors",
    "estimator.answers",
    "estimator.prediction",
    "export.reading",
    "features.decode_process",
)
IMPORT = re.compile(rf"^(\s*from ){WHOLE}((?:\.\w+)+ import )", re.MULTILINE)


class CutOut(BuildHookInterface):
    """Adds the modules to what is built, from a temporary folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root).parent / "src" / WHOLE
        if (Path(self.root) / "src" / "bayescal_runtime" / "_bayescal").is_dir() or not source.is_dir():
            return  # a source distribution has them
        self.made = Path(tempfile.mkdtemp(prefix="bayescal-runtime-"))
        cut(source, self.made)
        inside = "src/bayescal_runtime" if self.target_name == "sdist" else "bayescal_runtime"
        for file in self.made.rglob("*.py"):
            build_data["force_include"][str(file)] = f"{inside}/_bayescal/{file.relative_to(self.made).as_posix()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "made"):
            shutil.rmtree(self.made, ignore_errors=True)


def cut(source: Path, target: Path) -> list[str]:
    """Write the modules that are needed into `target`, and return their names."""
    names = sorted(closure(source))
    for name in names:
        file = target.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(IMPORT.sub(rf"\g<1>{PART}\g<2>", module(source, name).read_text(encoding="utf-8")), "utf-8")
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").write_text('"""Cut out of bayescal; see hatch_build.py there."""\n')
    return names


def closure(source: Path) -> set[str]:
    """Names of the modules that are needed, directly or by another."""
    found: set[str] = set()
    open_names = list(NEEDED)
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += imported(module(source, name))
    return found


def imported(file: Path) -> Iterator[str]:
    """Modules of the package that a module imports when it runs, anywhere in it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.partition(".")[0] == WHOLE for name in names):
            raise ValueError(f"{file}: `import {WHOLE}…` cannot be cut out, only `from {WHOLE}.… import`")
        if isinstance(node, ast.ImportFrom) and node.level == 0 and id(node) not in for_checkers:
            start, _, rest = (node.module or "").partition(".")
            if start == WHOLE:
                yield rest


def module(source: Path, name: str) -> Path:
    file = source.joinpath(*name.split(".")).with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"{WHOLE}.{name} is a package: name the module that is meant")
    return file
