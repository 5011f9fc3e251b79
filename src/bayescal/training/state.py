"""What a stack has learned so far: everything a training needs to continue, and the checkpoint it continues from."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bayescal.engine.params import Params, per_run
from bayescal.methods.contract import Method
from bayescal.training.checkpoint_file import read_checkpoint, write_checkpoint

CHECKPOINT_FORMAT = 3  # goes up when an old file could not be continued
# Evaluation sets that choose a checkpoint each: the epoch with the best accuracy on them.
CHECKPOINT_METRICS = ("val", "ood_val")


@dataclass
class Best:
    """Each run's parameters at the epoch that was best by one metric."""

    params: Params
    epoch: Tensor  # (R,): 0 where a run stopped before the end of its first epoch
    value: Tensor  # (R,): accuracy on the metric's images at that epoch

    @classmethod
    def fresh(cls, params: Params, seeds: Tensor) -> "Best":
        value = torch.full(seeds.shape, -1.0, device=seeds.device)
        return cls({name: tensor.clone() for name, tensor in params.items()}, torch.zeros_like(seeds), value)

    def offer(self, params: Params, epoch: int, value: Tensor, alive: Tensor) -> None:
        """Take this epoch's parameters in the runs where it is no worse: value and alive (R,)."""
        # Few validation images make ties common: the later epoch, at the smaller learning rate, wins them. A run that
        # has none, beside others in its stack, has no accuracy: each of its epochs is as good as the one before.
        value = value.nan_to_num(0.0)
        better = alive & (value >= self.value)
        self.value = torch.where(better, value, self.value)
        self.epoch = torch.where(better, epoch, self.epoch)
        for name, best in self.params.items():
            best.copy_(torch.where(per_run(better, best), params[name], best))


@dataclass
class Trained:
    """Outcome of a stack. Curves are (epochs, R); a stopped run keeps its last parameters and its message."""

    params: Params
    best: dict[str, Best]  # by metric; "val" is always there: without such a set, the last epoch a run finished
    curves: dict[str, Tensor]
    stopped: dict[int, str]  # run → why
    seconds: float
    gradient_norms: dict[str, Tensor]  # (P, R): gradient norm of each loss term (gradient_norms.py)
    gradient_norm_epochs: list[int]  # P: epochs finished when the norms were measured


@dataclass
class State:
    """Everything a training needs to continue. No random state: numbers are functions of seed and step."""

    params: Params
    trained: tuple[str, ...]  # names of the parameters that gradients move
    optimizer: Params
    best: dict[str, Best]
    alive: Tensor  # (R,) bool
    stopped_at: Tensor  # (R,): step at which a run stopped, −1 if it did not
    epoch: int = 0
    curves: dict[str, list[Tensor]] = field(default_factory=dict)
    gradient_norms: dict[str, list[Tensor]] = field(default_factory=dict)
    gradient_norm_epochs: list[int] = field(default_factory=list)

    @classmethod
    def fresh(cls, method: Method, params: Params, eval_sets: Iterable[str]) -> "State":
        seeds = method.runs.seeds
        by_gradient = method.trained_by_gradient
        trained = {name: value for name, value in params.items() if by_gradient and name not in method.frozen}
        return cls(
            params=params,
            trained=tuple(trained),
            optimizer=method.optimizer.init(trained) if trained else {},
            best={name: Best.fresh(params, seeds) for name in CHECKPOINT_METRICS if name == "val" or name in eval_sets},
            alive=torch.ones_like(seeds, dtype=torch.bool),
            stopped_at=torch.full_like(seeds, -1),
        )

    def close_epoch(self, terms: dict[str, Tensor], accuracy: dict[str, Tensor]) -> None:
        self.epoch += 1
        for name, value in (terms | accuracy).items():
            self.curves.setdefault(name, []).append(value)
        for metric, best in self.best.items():
            # Without images to choose by, every epoch is as good as the one before.
            value = accuracy.get(metric, torch.zeros_like(best.value))
            best.offer(self.params, self.epoch, value, self.alive)

    def add_gradient_norms(self, norms: dict[str, Tensor]) -> None:
        """Before an epoch: the gradient norms (R,) of the loss terms; empty for a method that measures none."""
        if not norms:
            return
        self.gradient_norm_epochs.append(self.epoch)
        for name, value in norms.items():
            self.gradient_norms.setdefault(name, []).append(value)

    def evaluate_again(self, accuracy: dict[str, Tensor]) -> None:
        """Replace the last epoch's accuracies by these."""
        for name, value in accuracy.items():
            self.curves[name][-1] = value

    def result(self, started: float) -> Trained:
        stopped = {
            run: f"stopped at step {step}: the loss or its gradient is not finite; try a smaller learning rate"
            for run, step in enumerate(self.stopped_at.tolist())
            if step >= 0
        }
        seconds = time.perf_counter() - started  # now that a GPU has been waited for
        curves, gradient_norms = stacked(self.curves), stacked(self.gradient_norms)
        return Trained(self.params, self.best, curves, stopped, seconds, gradient_norms, self.gradient_norm_epochs)

    def save(self, path: Path, identity: str) -> None:
        """Write a checkpoint. The names of its groups are those of the first version: files of old are continued."""
        groups = {"params": self.params, "optimizer": self.optimizer}
        groups |= {"curves": stacked(self.curves), "probes": stacked(self.gradient_norms)}
        groups["rows"] = {"alive": self.alive, "stopped_at": self.stopped_at}
        for metric, best in self.best.items():
            groups[f"best.{metric}"] = best.params
            groups[f"choice.{metric}"] = {"epoch": best.epoch, "value": best.value}
        metadata = {"epoch": json.dumps(self.epoch), "probes": json.dumps(self.gradient_norm_epochs)}
        write_checkpoint(path, identity, groups, metadata)

    def load(self, path: Path, identity: str) -> None:
        """Continue from a checkpoint of the same training; anything else is left alone and training starts anew."""
        found = read_checkpoint(path, identity, self.alive.device)
        if found is None:
            return
        groups, metadata = found
        self.params, self.optimizer = groups["params"], groups.get("optimizer", {})
        self.best = {name: Best(groups[f"best.{name}"], **groups[f"choice.{name}"]) for name in self.best}
        self.curves = {name: list(value) for name, value in groups.get("curves", {}).items()}
        self.gradient_norms = {name: list(value) for name, value in groups.get("probes", {}).items()}
        self.alive, self.stopped_at = groups["rows"]["alive"], groups["rows"]["stopped_at"]
        self.epoch, self.gradient_norm_epochs = json.loads(metadata["epoch"]), json.loads(metadata["probes"])


def stacked(curves: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """One (R,) tensor per point in time, put together: (points, R)."""
    return {name: torch.stack(values) for name, values in curves.items()}
