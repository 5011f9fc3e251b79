"""Where the CAL family is searched on each data set: the paper's ranges of λ1, λ2, λ3 and forms of the prompt."""

from typing import Any

from bayescal.methods.hyperparameters import Param, Space, choice, log10_uniform, number, setting


def cal_space(
    *,
    env: tuple[float, float],
    irm: tuple[float, float],
    orth: tuple[float, float],
    positions: tuple[str, ...] = ("end",),
    class_specific: tuple[bool, ...] = (False,),
) -> Space:
    """The search of the CAL family on one data set: exponents of 10 for λ1, λ2, λ3, and the forms of the prompt."""
    return {
        "lambda_env": number(0.1, log10_uniform(*env)),
        "lambda_irm": number(0.1, log10_uniform(*irm)),
        "lambda_orth": number(0.1, log10_uniform(*orth)),
        "position": _setting(positions),
        "class_specific": _setting(class_specific),
    }


def _setting(options: tuple[Any, ...]) -> Param:
    return setting(options[0], choice(*options) if len(options) > 1 else None)


RANGES: dict[str, Space] = {
    "pacs": cal_space(env=(-4, -1), irm=(-1, 0), orth=(-4, -1)),
    "vlcs": cal_space(env=(-2, -1), irm=(-1, 0), orth=(-2, -1)),
    "office-home": cal_space(env=(-3, 0), irm=(-2, 0), orth=(-3, 0)),
    "nico": cal_space(env=(-3, 0), irm=(-2, 0), orth=(-3, 0)),
    "nico-sub": cal_space(env=(-3, 0), irm=(-2, 0), orth=(-3, 0)),
    "ccd": cal_space(env=(-1, 0), irm=(-1, 1), orth=(-1, 0), positions=("end", "middle")),
    "colored-mnist": cal_space(
        env=(-3, 0), irm=(-1, 1), orth=(-3, 0), positions=("end", "middle"), class_specific=(False, True)
    ),
}


def search_ranges(dataset: str) -> Space:
    """The ranges of a data set by its name; {}: it has none of its own, and each method's hold."""
    return RANGES.get(dataset, {})
