"""Every method, by name. Adding one is a file here and a line in REGISTRY (see docs/adding-a-method.md)."""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from bayescal.errors import MethodError

if TYPE_CHECKING:
    from bayescal.methods.base import Method

REGISTRY = {
    "clip": "zero_shot.ZeroShot",
    "coop": "coop.CoOp",
    "cal": "cal.CAL",
    "bayes-cal": "bayes_cal.BayesCAL",
}


def method_names() -> list[str]:
    return list(REGISTRY)


def get_method(name: str) -> "type[Method]":
    """The method class of this name; an unknown name is answered with the nearest one."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), REGISTRY, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MethodError(f"there is no method {name!r}.{hint} Known: {', '.join(REGISTRY)}")
    module, cls = REGISTRY[name].split(".")
    return getattr(import_module(f"bayescal.methods.{module}"), cls)
