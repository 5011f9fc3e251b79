"""Where a training stands, on disk: one safetensors file, written whole, read only by the training it belongs to."""

import contextlib
import json
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayescal.errors import BayescalWarning
from bayescal.optim import Params


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
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        groups = {"params": self.params, "best": self.best, "optimizer": self.optimizer}
        flat = {f"{group}/{n}": t.detach().cpu().contiguous() for group, ts in groups.items() for n, t in ts.items()}
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(flat, temporary, metadata={"identity": identity, "about": json.dumps(self._about())})
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            # Training itself is fine: go on without the possibility to continue it.
            with contextlib.suppress(OSError):
                temporary.unlink()
            warnings.warn(f"could not write a checkpoint to {path}: {error}", BayescalWarning, stacklevel=2)

    def _about(self) -> dict[str, Any]:
        names = ("best_value", "best_epoch", "epoch", "curves", "problems", "seconds")
        return {name: getattr(self, name) for name in names}

    def load(self, path: Path, identity: str) -> bool:
        """Take over a checkpoint of the same training; anything else is left alone, and the training starts anew."""
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            return False
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") != identity:
                    return False
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return False
        groups: dict[str, Params] = {"params": {}, "best": {}, "optimizer": {}}
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
        for name in self.params:
            self.params[name].copy_(groups["params"][name])
            self.best[name].copy_(groups["best"][name])
        self.optimizer = groups["optimizer"]
        for name, value in json.loads(metadata["about"]).items():
            setattr(self, name, value)
        self.problems = [tuple(problem) for problem in self.problems]
        return True
