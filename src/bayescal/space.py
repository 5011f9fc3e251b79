"""Hyper-parameters: a default and a random draw on one line, each draw seeded by the parameter's name.

Numbers may differ between the rows of a stack; settings change the shape of the computation, so runs that differ in
one form separate stacks.
"""

import difflib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayescal.errors import MethodError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from bayescal.backbones.defaults import TrainingDefaults

Config = dict[str, Any]  # one run's hyper-parameters


@dataclass(frozen=True)
class Uniform:
    """Any number between low and high, all equally likely."""

    low: float
    high: float

    def __call__(self, r: random.Random) -> float:
        return r.uniform(self.low, self.high)

    def distribution(self) -> "BaseDistribution":
        """The same range, for Optuna."""
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high)


@dataclass(frozen=True)
class Log10Uniform:
    """10^u, the exponent u uniform between low and high; `whole`: cut down to a whole number, for counts."""

    low: float
    high: float
    whole: bool = False

    def __call__(self, r: random.Random) -> float | int:
        value = 10 ** r.uniform(self.low, self.high)
        return int(value) if self.whole else value

    def distribution(self) -> "BaseDistribution":
        """The same range, for Optuna (which rounds whole numbers to the nearest, where a draw cuts them down)."""
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high = 10.0**self.low, 10.0**self.high
        return IntDistribution(int(low), int(high), log=True) if self.whole else FloatDistribution(low, high, log=True)


@dataclass(frozen=True)
class Choice:
    """One of the options, all equally likely."""

    options: tuple[Any, ...]

    def __call__(self, r: random.Random) -> Any:
        return r.choice(self.options)

    def distribution(self) -> "BaseDistribution":
        """The same options, for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.options)


Draw = Uniform | Log10Uniform | Choice  # called with a random.Random, it gives a value


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


def uniform(low: float, high: float) -> Uniform:
    return Uniform(low, high)


def log10_uniform(low: float, high: float, whole: bool = False) -> Log10Uniform:
    return Log10Uniform(low, high, whole)


def choice(*options: Any) -> Choice:
    return Choice(options)


def searched(space: Space) -> dict[str, Draw]:
    """The parameters that a search varies, each with its draw."""
    return {name: param.draw for name, param in space.items() if param.draw is not None}


def default_config(space: Space, defaults: "TrainingDefaults", **given: Any) -> Config:
    """The method's defaults on this backbone, with the user's own values put in their place."""
    check_options(space, given)
    for name, value in given.items():
        check_value(space[name], value, defaults, f"option {name!r}")
    return {name: param.default_for(defaults) for name, param in space.items()} | given


def draw_config(space: Space, defaults: "TrainingDefaults", trial: int, **given: Any) -> Config:
    """Random draw number `trial`; adding a parameter to a space leaves the draws of the others as they were."""
    drawn = {
        name: draw(random.Random(f"{trial}/{name}")) for name, draw in searched(space).items() if name not in given
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
