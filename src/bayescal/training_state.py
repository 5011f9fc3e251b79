"""What a stack has learned so far: everything a training needs to continue, and the checkpoint it continues from."""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bayescal.errors import BayescalWarning
from bayescal.methods.base import Method
from bayescal.optim import Params, per_row

CHECKPOINT_FORMAT = 2  # goes up when an old file could not be continued
CHOOSERS = ("val", "ood_val")  # judged sets that choose a checkpoint each: the epoch with the best accuracy on them


@dataclass
class Best:
    """Each row's parameters at the epoch that one chooser liked best."""

    params: Params
    epoch: Tensor  # (R,): 0 where a row stopped before the end of its first epoch
    value: Tensor  # (R,): accuracy on the chooser's images at that epoch

    @classmethod
    def fresh(cls, params: Params, seeds: Tensor) -> "Best":
        value = torch.full(seeds.shape, -1.0, device=seeds.device)
        return cls({name: tensor.clone() for name, tensor in params.items()}, torch.zeros_like(seeds), value)

    def offer(self, params: Params, epoch: int, value: Tensor, alive: Tensor) -> None:
        """Take this epoch's parameters in the rows where it is no worse: value and alive (R,)."""
        # Few validation images make ties common: the later epoch, at the smaller learning rate, wins them.
        better = alive & (value >= self.value)
        self.value = torch.where(better, value, self.value)
        self.epoch = torch.where(better, epoch, self.epoch)
        for name, best in self.params.items():
            best.copy_(torch.where(per_row(better, best), params[name], best))


@dataclass
class Trained:
    """Outcome of a stack. Curves are (epochs, R); a stopped row keeps its last parameters and its message."""

    params: Params
    best: dict[str, Best]  # by chooser; "val" is always there: without such a set, the last epoch a row finished
    curves: dict[str, Tensor]
    stopped: dict[int, str]
    seconds: float
    probes: dict[str, Tensor]  # (P, R): gradient norm of each loss term (probes.py)
    probe_epochs: list[int]  # P: epochs finished when a probe was taken


@dataclass
class State:
    """Everything a training needs to continue. No random state: numbers are functions of seed and step."""

    params: Params
    trained: tuple[str, ...]  # names of the parameters that gradients move
    optimizer: Params
    best: dict[str, Best]
    alive: Tensor  # (R,) bool
    stopped_at: Tensor  # (R,): step at which a row stopped, −1 if it did not
    epoch: int = 0
    curves: dict[str, list[Tensor]] = field(default_factory=dict)
    probes: dict[str, list[Tensor]] = field(default_factory=dict)
    probe_epochs: list[int] = field(default_factory=list)

    @classmethod
    def fresh(cls, method: Method, params: Params, judged: Iterable[str]) -> "State":
        seeds = method.runs.seeds
        trained = {name: value for name, value in params.items() if name not in method.frozen}
        return cls(
            params=params,
            trained=tuple(trained),
            optimizer=method.optimizer.init(trained) if trained else {},
            best={name: Best.fresh(params, seeds) for name in CHOOSERS if name == "val" or name in judged},
            alive=torch.ones_like(seeds, dtype=torch.bool),
            stopped_at=torch.full_like(seeds, -1),
        )

    def close_epoch(self, terms: dict[str, Tensor], accuracy: dict[str, Tensor]) -> None:
        self.epoch += 1
        for name, value in (terms | accuracy).items():
            self.curves.setdefault(name, []).append(value)
        for chooser, best in self.best.items():
            # Without images to choose by, every epoch is as good as the one before.
            value = accuracy.get(chooser, torch.zeros_like(best.value))
            best.offer(self.params, self.epoch, value, self.alive)

    def add_probe(self, norms: dict[str, Tensor]) -> None:
        """Before an epoch: the gradient norms (R,) of the loss terms; nothing, for a method that is not probed."""
        if not norms:
            return
        self.probe_epochs.append(self.epoch)
        for name, value in norms.items():
            self.probes.setdefault(name, []).append(value)

    def judge_again(self, accuracy: dict[str, Tensor]) -> None:
        """Put these accuracies in the place of the last epoch's."""
        for name, value in accuracy.items():
            self.curves[name][-1] = value

    def result(self, started: float) -> Trained:
        stopped = {
            row: f"stopped at step {step}: the loss or its gradient is not finite; try a smaller learning rate"
            for row, step in enumerate(self.stopped_at.tolist())
            if step >= 0
        }
        seconds = time.perf_counter() - started  # now that a GPU has been waited for
        curves, probes = stacked(self.curves), stacked(self.probes)
        return Trained(self.params, self.best, curves, stopped, seconds, probes, self.probe_epochs)

    def save(self, path: Path, identity: str) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        groups = {"params": self.params, "optimizer": self.optimizer}
        groups |= {"curves": stacked(self.curves), "probes": stacked(self.probes)}
        groups["rows"] = {"alive": self.alive, "stopped_at": self.stopped_at}
        for chooser, best in self.best.items():
            groups[f"best.{chooser}"] = best.params
            groups[f"choice.{chooser}"] = {"epoch": best.epoch, "value": best.value}
        flat = {f"{group}/{n}": t.detach().cpu().contiguous() for group, ts in groups.items() for n, t in ts.items()}
        metadata = {"identity": identity, "epoch": json.dumps(self.epoch), "probes": json.dumps(self.probe_epochs)}
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(flat, temporary, metadata=metadata)
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            # Training itself is fine: go on without the possibility to continue it.
            with contextlib.suppress(OSError):
                temporary.unlink()
            warnings.warn(f"could not write a checkpoint to {path}: {error}", BayescalWarning, stacklevel=2)

    def load(self, path: Path, identity: str) -> None:
        """Continue from a checkpoint of the same training; anything else is left alone and training starts anew."""
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            return
        device = self.alive.device
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") != identity:
                    return
                tensors = {key: file.get_tensor(key).to(device) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return
        groups: dict[str, Params] = {}
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups.setdefault(group, {})[name] = value
        self.params, self.optimizer = groups["params"], groups["optimizer"]
        self.best = {name: Best(groups[f"best.{name}"], **groups[f"choice.{name}"]) for name in self.best}
        self.curves = {name: list(value) for name, value in groups.get("curves", {}).items()}
        self.probes = {name: list(value) for name, value in groups.get("probes", {}).items()}
        self.alive, self.stopped_at = groups["rows"]["alive"], groups["rows"]["stopped_at"]
        self.epoch, self.probe_epochs = json.loads(metadata["epoch"]), json.loads(metadata["probes"])


def stacked(curves: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """One (R,) tensor per point in time, put together: (points, R)."""
    return {name: torch.stack(values) for name, values in curves.items()}
