"""The paper's tables and figures, one file each. `bayescal bench NAME` runs one; `all` runs them in this order."""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from bayescal.errors import BayescalError

if TYPE_CHECKING:
    from bayescal.experiments.experiment import Experiment

EXPERIMENTS = {
    "main": "main",
    "ablation": "ablation",
    "adapters": "adapters",
    "base-to-new": "base_to_new",
    "instances": "instances",
    "epochs": "epochs",
    "landscape": "landscape",
    "tsne": "tsne",
    "wilcoxon": "wilcoxon",
}


def get_experiment(name: str) -> "Experiment":
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, [*EXPERIMENTS, "all"], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BayescalError(f"there is no experiment {name!r}.{hint} There are: {', '.join(EXPERIMENTS)}, all")
    return import_module(f"bayescal.experiments.{EXPERIMENTS[name]}").EXPERIMENT
