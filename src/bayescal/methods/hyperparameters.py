"""Hyper-parameters: a default and a random draw on one line, each draw seeded by the parameter's name.

Numbers may differ between the runs of a stack; settings change the shape of the computation, so runs that differ in
one form separate stacks.

Names have one style: `lambda_TERM` for the weight of a loss term, else a plain noun or the letter that the equation at
the top of the method's file has. A method's name is no part of them, since an option is always one of a method.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bayescal.errors import MethodError
from bayescal.util.suggest import or_did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from bayescal.backbones.defaults import TrainingDefaults

Config = dict[str, Any]  # one run's hyper-parameters


@dataclass(frozen=True)
class Uniform:
    """Any number between low and high, all equally likely."""

    low: float
    high: float
    log: ClassVar[bool] = False  # whether its values are best shown on a logarithmic axis

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
    log: ClassVar[bool] = True

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
    log: ClassVar[bool] = False

    def __call__(self, r: random.Random) -> Any:
        return r.choice(self.options)

    def distribution(self) -> "BaseDistribution":
        """The same options, for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.options)


Draw = Uniform | Log10Uniform | Choice  # called with a random.Random, it gives a value


@dataclass(frozen=True)
class Param:
    """`default` is a value, or a function of the backbone's training defaults; without `draw` it is never searched.

    `at_least`: the smallest count that makes sense, such as 1 of what there has to be one.
    `drawn_as`: the name that seeds the draws, where it is not the parameter's own. A renamed parameter keeps the name
    it had, so that trial k of a search stays what it was.
    """

    default: Any
    draw: Draw | None = None
    is_number: bool = True
    drawn_as: str = ""
    at_least: int = 0

    def default_for(self, defaults: "TrainingDefaults") -> Any:
        return self.default(defaults) if callable(self.default) else self.default


Space = Mapping[str, Param]


# What hyper-parameters were called before they had one style, by method: old name → new name. Old artifacts and records
# are read through `renamed`; the keys of records are those of the old names (`first_names`), so none is made twice.
_TIP = {f"tip_{name}": name for name in ("alpha", "beta", "alpha_max", "alpha_steps", "beta_max", "beta_steps")}
RENAMED: Mapping[str, Mapping[str, str]] = {
    "clip-adapter": {"adapter_ratio": "ratio", "adapter_side": "side", "adapter_reduction": "reduction"},
    "tip-adapter": _TIP,
    "tip-adapter-f": _TIP,
    "irm": {"irm_lambda": "lambda_irm"},
    "vrex": {"vrex_beta": "lambda_variance"},
    "groupdro": {"groupdro_eta": "eta"},
    "andmask": {"andmask_tau": "tau"},
    "rsc": {"rsc_features": "muted_features", "rsc_samples": "challenged_samples"},
    "mmd": {"mmd_gamma": "lambda_mmd"},
    "sagnet": {"sagnet_adversary": "lambda_adversary"},
    "mldg": {
        "mldg_beta": "lambda_meta_test",
        "mldg_inner_rate": "inner_rate",
        "mldg_meta_test": "meta_test_environments",
        "mldg_exact": "second_order",
    },
    "erdg": {
        "erdg_discriminator": "lambda_discriminator",
        "erdg_cross": "lambda_cross",
        "erdg_entropy": "lambda_entropy",
    },
    "stable": {
        "stable_rate": "weight_rate",
        "stable_spread": "lambda_spread",
        "stable_steps": "weight_steps",
        "stable_features": "sampled_features",
        "stable_fourier": "fourier_functions",
    },
    "jigsaw": {
        "jigsaw_weight": "lambda_puzzle",
        "jigsaw_ordered": "ordered_share",
        "jigsaw_permutations": "permutations",
    },
}

# Hyper-parameters that a method no longer has. Saved configs are read without them: prediction does not need them.
RETIRED: Mapping[str, frozenset[str]] = {"irm": frozenset({"irm_anneal"}), "vrex": frozenset({"vrex_anneal"})}


def renamed(method: str, config: Mapping[str, Any]) -> Config:
    """A saved config of this method with the names of today."""
    table, gone = RENAMED.get(method, {}), RETIRED.get(method, frozenset())
    return {table.get(name, name): value for name, value in config.items() if name not in gone}


def first_names(method: str, config: Mapping[str, Any]) -> Config:
    """The opposite of `renamed`: a config of today with the names its hyper-parameters had first."""
    table = {new: old for old, new in RENAMED.get(method, {}).items()}
    return {table.get(name, name): value for name, value in config.items()}


def number(default: Any, draw: Draw | None = None, drawn_as: str = "") -> Param:
    return Param(default, draw, drawn_as=drawn_as)


def setting(default: Any, draw: Draw | None = None, drawn_as: str = "", at_least: int = 0) -> Param:
    return Param(default, draw, is_number=False, drawn_as=drawn_as, at_least=at_least)


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
    """Random trial number `trial`; adding a parameter to a space leaves the values of the others as they were."""
    drawn = {name: numbered_draw(space, name, trial) for name in searched(space) if name not in given}
    return default_config(space, defaults, **(drawn | given))


def numbered_draw(space: Space, name: str, trial: int) -> Any:
    """Value number `trial` of a searched parameter: a function of that number and the parameter's name alone."""
    param = space[name]
    assert param.draw is not None, f"{name} is not searched"
    return param.draw(random.Random(f"{trial}/{param.drawn_as or name}"))


def check_value(param: Param, value: Any, defaults: "TrainingDefaults", where: str) -> None:
    """Refuse a value of another kind than the parameter's default has."""
    default = param.default_for(defaults)
    whole = isinstance(value, int) and not isinstance(value, bool)
    real = whole or (isinstance(value, float) and not math.isnan(value))
    if whole and abs(value) >= 1 << 63:
        raise MethodError(f"{where}: a whole number of at most 18 digits is expected")
    if param.is_number:
        if not real:
            raise MethodError(f"{where}: expected a number, found {value!r}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise MethodError(f"{where}: expected true or false, found {value!r}")
    elif isinstance(default, int):
        if not whole:
            raise MethodError(f"{where}: expected a whole number, found {value!r}")
    elif isinstance(default, float):
        if not real or math.isinf(value):
            raise MethodError(f"{where}: expected a finite number, found {value!r}")
    elif isinstance(default, str) and not isinstance(value, str):
        raise MethodError(f"{where}: expected text, found {value!r}")
    if isinstance(value, int | float) and value < 0 and not _may_be_negative(param, default):
        raise MethodError(f"{where}: expected a number that is not negative, found {value!r}")
    if isinstance(value, int) and value < param.at_least:
        raise MethodError(f"{where}: expected at least {param.at_least}, found {value!r}")


def _may_be_negative(param: Param, default: Any) -> bool:
    """Rates, weights of terms, counts and scales are not; what has a negative default or draw is."""
    return (isinstance(default, int | float) and default < 0) or (
        isinstance(param.draw, Uniform) and param.draw.low < 0
    )


def settings_of(space: Space, config: Config) -> Config:
    """The part of a config that decides which stack a run belongs to."""
    return {name: value for name, value in config.items() if not space[name].is_number}


def check_options(space: Space, given: Mapping[str, Any], who: str = "this method") -> None:
    """Refuse options that a method does not have, by name, with the nearest one it has."""
    for name in given:
        if name not in space:
            now = [table[name] for table in RENAMED.values() if table.get(name) in space]
            hint = f"; did you mean {now[0]!r}?" if now else or_did_you_mean(name, space)
            raise MethodError(f"{who} has no option {name!r}{hint} It has: {', '.join(sorted(space))}")
