"""Hyper-parameters: a default and a random draw on one line, each draw seeded by the parameter's name.

Numbers may differ between the rows of a stack; settings change the shape of the computation, so runs that differ in
one form separate stacks.
"""

import difflib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayescal.errors import MethodError

if TYPE_CHECKING:
    from bayescal.backbones.defaults import TrainingDefaults

Draw = Callable[[random.Random], Any]
Config = dict[str, Any]  # one run's hyper-parameters


@dataclass(frozen=True)
class Param:
    """`default` is a value, or a function of the backbone's training defaults; without `draw` it is never searched."""

    default: Any
    draw: Draw | None = None
    is_number: bool = True

    def default_for(self, defaults: "TrainingDefaults") -> Any:
        return self.default(defaults) if callable(self.default) else self.default


Space = Mapping[str, Param]


def number(default: Any, draw: Draw | None = None) -> Param:
    return Param(default, draw)


def setting(default: Any, draw: Draw | None = None) -> Param:
    return Param(default, draw, is_number=False)


def log10_uniform(low: float, high: float) -> Draw:
    return lambda r: 10 ** r.uniform(low, high)


def uniform(low: float, high: float) -> Draw:
    return lambda r: r.uniform(low, high)


def choice(*options: Any) -> Draw:
    return lambda r: r.choice(options)


def default_config(space: Space, defaults: "TrainingDefaults", **given: Any) -> Config:
    """The method's defaults on this backbone, with the user's own values put in their place."""
    check_options(space, given)
    for name, value in given.items():
        check_value(space[name], value, defaults, f"option {name!r}")
    return {name: param.default_for(defaults) for name, param in space.items()} | given


def draw_config(space: Space, defaults: "TrainingDefaults", trial: int, **given: Any) -> Config:
    """Random draw number `trial`; adding a parameter to a space leaves the draws of the others as they were."""
    drawn = {
        name: param.draw(random.Random(f"{trial}/{name}"))
        for name, param in space.items()
        if param.draw is not None and name not in given
    }
    return default_config(space, defaults, **(drawn | given))


def check_value(param: Param, value: Any, defaults: "TrainingDefaults", where: str) -> None:
    """Refuse a value of another kind than the parameter's default has."""
    default = param.default_for(defaults)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if param.is_number:
        if not (whole or isinstance(value, float)) or math.isnan(value):
            raise MethodError(f"{where}: expected a number, found {value!r}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise MethodError(f"{where}: expected true or false, found {value!r}")
    elif isinstance(default, int):
        if not whole:
            raise MethodError(f"{where}: expected a whole number, found {value!r}")
    elif isinstance(default, str) and not isinstance(value, str):
        raise MethodError(f"{where}: expected text, found {value!r}")


def settings_of(space: Space, config: Config) -> Config:
    """The part of a config that decides which stack a run belongs to."""
    return {name: value for name, value in config.items() if not space[name].is_number}


def check_options(space: Space, given: Mapping[str, Any], who: str = "this method") -> None:
    """Refuse options that a method does not have, by name, with the nearest one it has."""
    for name in given:
        if name not in space:
            near = difflib.get_close_matches(name, space, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise MethodError(f"{who} has no option {name!r}{hint} It has: {', '.join(sorted(space))}")
