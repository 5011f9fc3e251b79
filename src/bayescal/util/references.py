"""Objects outside the package by reference: "my_package.my_module:MyMethod" is a module and an attribute of it."""

import ast
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from typing import Any

from bayescal.errors import BayescalError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """Whether this is written as MODULE:ATTRIBUTE."""
    return _REFERENCE.fullmatch(text) is not None


def reference_of(cls: type) -> str:
    """MODULE:CLASS of a class, which others can import unless it is defined in a script or inside a function."""
    return f"{cls.__module__}:{cls.__qualname__}"


def load_reference(reference: str, what: str, error: type[BayescalError]) -> Any:
    """The object that MODULE:ATTRIBUTE names. `what` it is and the kind of `error` are for the message if it fails."""
    module_name, _, attribute = reference.partition(":")
    if not is_reference(reference):
        raise error(f"{what} {reference!r}: expected MODULE:NAME, for example my_package.my_module:MyMethod")
    try:
        module = import_module(module_name)
    except Exception as problem:  # whatever goes wrong in somebody's module goes wrong there, not here
        if isinstance(problem, ModuleNotFoundError) and f"{module_name}.".startswith(f"{problem.name}."):
            raise error(_not_importable(reference, what, str(problem))) from problem
        why = f"{type(problem).__name__}: {problem}"
        raise error(
            f"{what} {reference!r}: importing {module_name!r} failed ({why}). Put it right there; BAYESCAL_DEBUG=1 "
            "shows the line"
        ) from problem
    try:
        return attrgetter(attribute)(module)
    except AttributeError as problem:
        raise error(f"{what} {reference!r}: the module {module_name!r} has no {attribute!r}") from problem


def check_defines_class(reference: str, what: str, error: type[BayescalError]) -> None:
    """Refuse a reference to anything but a class that is written in its module, without importing any module.

    For references out of files: such a file may come from anywhere, and importing a module runs it. A module that
    is imported already may be asked for anything, since nothing of it runs again.
    """
    module_name, _, attribute = reference.partition(":")
    if not is_reference(reference):
        raise error(f"{what} {reference!r}: is not the name of a class, MODULE:CLASS")
    if module_name in sys.modules:
        return
    spec = _find(module_name)
    if spec is None:
        raise error(_not_importable(reference, what, f"there is no module {module_name!r}"))
    if not _has_class(spec, attribute.split(".")):
        raise error(f"{what} {reference!r}: the module {module_name!r} defines no such class, so it is not imported")


def _not_importable(reference: str, what: str, why: str) -> str:
    module_name = reference.partition(":")[0]
    top = module_name.partition(".")[0]
    return (
        f"{what} {reference!r} cannot be imported here: {why}. Install the distribution that has {top!r} "
        "(pip install …), or, if it is a file of yours, name the folder it lies in: PYTHONPATH=FOLDER"
    )


def _find(module_name: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages above it (as importlib.util.find_spec would)."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(name, path) for find in finders if find is not None)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _has_class(spec: ModuleSpec, names: Sequence[str]) -> bool:
    """Whether the module's source has a class statement of this (dotted) name, with a base class."""
    if not spec.origin or not spec.origin.endswith(".py"):
        return False
    try:
        body: list[ast.stmt] = ast.parse(Path(spec.origin).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    found: ast.ClassDef | None = None
    for name in names:
        found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)
        if found is None:
            return False
        body = found.body
    return found is not None and bool(found.bases)
