"""Where the training of an image model stands, in memory and in its checkpoint."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bayescal.engine.params import Params
from bayescal.training.checkpoint_file import read_checkpoint, write_checkpoint

_ABOUT = ("best_value", "best_epoch", "epoch", "curves", "problems", "seconds")  # what is not a tensor


@dataclass
class State:
    """Everything a training needs to continue. No random state: numbers are functions of the seed and the step."""

    params: Params  # (1, …) each
    best: Params  # those of the epoch that validated best
    optimizer: Params = field(default_factory=dict)
    best_value: float = -1.0
    best_epoch: int = 0
    epoch: int = 0  # epochs that are done
    curves: dict[str, list[float]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)  # images that could not be read
    seconds: float = 0.0

    def close_epoch(self, values: dict[str, float]) -> None:
        """Add an epoch to the curves; without validation, the last epoch is the best."""
        self.epoch += 1
        for name, value in values.items():
            self.curves.setdefault(name, []).append(value)
        value = values.get("val", float(self.epoch))
        if value >= self.best_value:  # the later one wins a tie, as on frozen features
            self.best_value, self.best_epoch = value, self.epoch
            for name, tensor in self.params.items():
                self.best[name].copy_(tensor)

    def save(self, path: Path, identity: str) -> None:
        groups = {"params": self.params, "best": self.best, "optimizer": self.optimizer}
        write_checkpoint(path, identity, groups, {"about": json.dumps({name: getattr(self, name) for name in _ABOUT})})

    def load(self, path: Path, identity: str) -> bool:
        """Take over a checkpoint of the same training; anything else is left alone, and the training starts anew."""
        found = read_checkpoint(path, identity)
        if found is None:
            return False
        groups, metadata = found
        for name in self.params:
            self.params[name].copy_(groups["params"][name])
            self.best[name].copy_(groups["best"][name])
        self.optimizer = groups.get("optimizer", {})
        for name, value in json.loads(metadata["about"]).items():
            setattr(self, name, value)
        self.problems = [(path, reason) for path, reason in self.problems]
        return True
