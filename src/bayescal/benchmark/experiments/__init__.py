"""The paper's tables and figures, one file each. `bayescal bench NAME` runs one; `all` runs them in this order.

This is the only list of them: the command's help, the order of a report and the tests read it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bayescal.errors import BayescalError
from bayescal.util.suggest import did_you_mean

if TYPE_CHECKING:
    from bayescal.benchmark.experiments.experiment import Experiment

EXPERIMENTS = (
    "main",
    "ablation",
    "adapters",
    "auto",
    "selection",
    "base-to-new",
    "instances",
    "epochs",
    "landscape",
    "tsne",
    "wilcoxon",
)


def get_experiment(name: str) -> "Experiment":
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, [*EXPERIMENTS, "all"])
        raise BayescalError(f"there is no experiment {name!r}.{hint} There are: {', '.join(EXPERIMENTS)}, all")
    return import_module(f"bayescal.benchmark.experiments.{name.replace('-', '_')}").EXPERIMENT
