"""The stacked loop: R runs trained as one program on cached features. It never opens an image."""

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal import rng
from bayescal.errors import BayescalWarning, MethodError
from bayescal.methods.base import Batch, Method, Samples
from bayescal.optim import Params, per_row
from bayescal.probes import term_gradient_norms

CHECKPOINT_SECONDS = 5.0  # a kill loses at most about this much training
CHECKPOINT_FORMAT = 2  # goes up when an old file could not be continued
CHOOSERS = ("val", "ood_val")  # judged sets that choose a checkpoint each: the epoch with the best accuracy on them


@dataclass(frozen=True)
class StackData:
    """What the R rows of a stack are trained and judged on; image indices count rows of `features`."""

    features: Tensor  # (N, D): test transform
    labels: Tensor  # (N,)
    environments: Tensor  # (N,): among all environments of the problem
    local: Tensor  # (R, G): an environment's number among the row's own training environments, −1 if not one
    train: Tensor  # (R, n): training images of each row
    judged: dict[str, Tensor] = field(default_factory=dict)  # name → (R, N) bool; `CHOOSERS` choose checkpoints
    views: Tensor | None = None  # (U, V, D): augmented views of the training images
    view_rows: Tensor | None = None  # (N,): where an image's views are, −1 if it has none


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


def epoch_order(seeds: Tensor, epoch: int, n: int, batch_size: int) -> Tensor:
    """Positions of the epoch's samples: (R, steps, B). The last batch is filled up from the epoch's first samples."""
    size = min(batch_size, n)
    steps = math.ceil(n / size)
    order = rng.permutations(seeds, "order", epoch, n)
    return torch.cat([order, order[:, : steps * size - n]], dim=1).view(len(seeds), steps, size)


def train(
    method: Method,
    data: StackData,
    *,
    checkpoint: Path | None = None,
    identity: str = "",
    on_epoch: Callable[[int, int], None] | None = None,
    observe: Callable[[int, Params], None] | None = None,
    probe_every: int = 0,
) -> Trained:
    """Train every row of the stack; with `checkpoint`, a killed training continues where it was.

    `identity` names what is trained (configs, splits, features): a checkpoint of something else is not continued.
    `observe(epoch, params)` is shown the parameters before training (epoch 0, or where a checkpoint continues) and
    after each epoch; they are the live tensors, to be copied by whoever keeps them. `probe_every` = k > 0 measures, at
    the first batch of the first and every k-th epoch after it, how hard each loss term pulls at `method.probed`.
    """
    started = time.perf_counter()
    runs = method.runs
    params = method.init(training_samples(data))
    state = _State.fresh(method, params, data.judged)
    # A method that learns nothing by gradient is judged once, as it is.
    epochs = runs["epochs"] if state.trained else 0
    if state.trained and (epochs < 1 or runs["batch_size"] < 1):
        raise MethodError(f"epochs ({epochs}) and batch_size ({runs['batch_size']}) must be at least 1")
    identity = f"{CHECKPOINT_FORMAT}/{probe_every}/{identity}"
    if checkpoint is not None:
        state.load(checkpoint, identity)
    if observe is not None:
        observe(state.epoch, state.params)
    decay = {name: runs["weight_decay"] for name in state.trained if method.decays(name)}
    saved = time.perf_counter()
    for epoch in range(state.epoch, epochs):
        if probe_every and epoch % probe_every == 0:
            state.add_probe(probe(method, state.params, data, epoch))
        terms = _train_epoch(method, data, state, epoch, decay)
        accuracy = judge(method, state.params, data, at_end=epoch + 1 == epochs)
        state.close_epoch(terms, accuracy)
        if checkpoint is not None and (time.perf_counter() - saved > CHECKPOINT_SECONDS or epoch + 1 == epochs):
            state.save(checkpoint, identity)
            saved = time.perf_counter()
        if observe is not None:
            observe(state.epoch, state.params)
        if on_epoch is not None:
            on_epoch(epoch + 1, epochs)
    if not epochs:
        state.close_epoch({}, judge(method, state.params, data))
    if "val" in data.judged:
        val = validation_samples(data)
        state.params = method.finish(state.params, val)
        for best in state.best.values():
            best.params = method.finish(best.params, val)
        if type(method).finish is not Method.finish:
            # The choice changes the predictions: the last accuracies of the curves are those of the finished method.
            state.judge_again(judge(method, state.params, data))
    return state.result(time.perf_counter() - started)


def _train_epoch(
    method: Method, data: StackData, state: "_State", epoch: int, decay: dict[str, Tensor]
) -> dict[str, Tensor]:
    """One pass over each row's samples; returns the epoch's mean of every loss term, (R,) each."""
    runs = method.runs
    n = data.train.shape[1]
    order = epoch_order(runs.seeds, epoch, n, runs["batch_size"])
    rate = method.schedule(runs["learning_rate"], epoch, runs["epochs"])
    steps = order.shape[1]
    sums: dict[str, Tensor] = {}
    for i in range(steps):
        step = epoch * steps + i
        batch = gather_batch(data, runs.seeds, order[:, i], epoch, step)
        resets = method.resets(step)
        if resets is not None:
            for value in state.optimizer.values():
                value.masked_fill_(per_row(resets, value), 0.0)
        grads, terms = method.gradients(state.params, batch)
        # A row whose loss or gradient is not finite stops where it is; rows never mix, so the others go on.
        finite = torch.isfinite(terms["total"])
        for grad in grads.values():
            finite &= torch.isfinite(grad).flatten(1).all(1)
        state.stopped_at = torch.where(state.alive & ~finite, step, state.stopped_at)
        state.alive &= finite
        grads = {name: torch.where(per_row(state.alive, g), g, 0.0) for name, g in grads.items()}
        alive_rate = torch.where(state.alive, rate, 0.0)
        method.optimizer.step(state.params, grads, state.optimizer, alive_rate, decay)
        for name, value in terms.items():
            sums[name] = sums.get(name, 0.0) + value / steps
    return sums


def probe(method: Method, params: Params, data: StackData, epoch: int) -> dict[str, Tensor]:
    """Gradient norm (R,) of each loss term at the epoch's first batch, before its step."""
    runs = method.runs
    order = epoch_order(runs.seeds, epoch, data.train.shape[1], runs["batch_size"])
    batch = gather_batch(data, runs.seeds, order[:, 0], epoch, epoch * order.shape[1])
    return term_gradient_norms(method, params, batch)


def gather_batch(data: StackData, seeds: Tensor, positions: Tensor, epoch: int, step: int) -> Batch:
    """The samples at these positions of each row's training list: positions (R, B)."""
    images = data.train.gather(1, positions)  # (R, B)
    if data.views is None:
        features = data.features[images]
    else:
        # A fresh view per epoch and image: the same one wherever the image falls in the epoch's order.
        n = data.train.shape[1]
        view = rng.integers(seeds, "view", epoch, n, data.views.shape[1]).gather(1, positions)
        features = data.views[data.view_rows[images], view]
    return Batch(
        features=features,
        labels=data.labels[images],
        environments=data.local.gather(1, data.environments[images]),
        n_train=data.train.shape[1],
        step=step,
    )


def training_samples(data: StackData) -> Samples:
    """Each row's whole training set, test transform."""
    images = data.train
    environments = data.local.gather(1, data.environments[images])
    return Samples(data.features[images], data.labels[images], environments, torch.ones_like(images, dtype=torch.bool))


def validation_samples(data: StackData) -> Samples:
    """Each row's validation set."""
    images, own = masked_images(data.judged["val"])
    environments = data.local.gather(1, data.environments[images])
    return Samples(data.features[images], data.labels[images], environments, own)


@torch.no_grad()
def judge(method: Method, params: Params, data: StackData, at_end: bool = True) -> dict[str, Tensor]:
    """Accuracy (R,) on each judged set, at the posterior mean.

    Where images are costly (`predict_chunk` None), only the sets that choose are judged before the end of training;
    the others are NaN until then.
    """
    if not data.judged:
        return {}
    prepared = method.prepare(params, 0)
    if method.predict_chunk is None:
        unknown = torch.full_like(method.runs.seeds, torch.nan, dtype=torch.float32)
        return {
            name: _judge_together(method, prepared, data, mask) if at_end or name in CHOOSERS else unknown
            for name, mask in data.judged.items()
        }
    wanted = torch.stack([mask.any(0) for mask in data.judged.values()]).any(0).nonzero()[:, 0]
    right = torch.cat(
        [
            method.logits(prepared, data.features[part], data.environments[part])[:, 0].argmax(-1) == data.labels[part]
            for part in wanted.split(method.images_at_once(len(wanted)))
        ],
        dim=1,
    ).float()  # (R, n)
    masks = {name: mask[:, wanted].float() for name, mask in data.judged.items()}
    return {name: (right * mask).sum(1) / mask.sum(1) for name, mask in masks.items()}


def _judge_together(method: Method, prepared: Any, data: StackData, mask: Tensor) -> Tensor:
    """Accuracy (R,) where each row sees its own set and no other image."""
    images, own = masked_images(mask)
    if not images.shape[1]:
        return torch.full_like(method.runs.seeds, torch.nan, dtype=torch.float32)
    groups = torch.where(own, data.environments[images], -1)  # −1: fills up a row, not an image of its set
    right = method.logits(prepared, data.features[images], groups)[:, 0].argmax(-1) == data.labels[images]
    return (right & own).sum(1) / own.sum(1)


def masked_images(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of each row's images, filled up with others where rows have fewer: mask (R, N) → (R, n), (R, n) bool."""
    images = mask.int().argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(1).max())]
    return images, mask.gather(1, images)


@dataclass
class _State:
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
    def fresh(cls, method: Method, params: Params, judged: Iterable[str]) -> "_State":
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

    def result(self, seconds: float) -> Trained:
        stopped = {
            row: f"stopped at step {step}: the loss or its gradient is not finite; try a smaller learning rate"
            for row, step in enumerate(self.stopped_at.tolist())
            if step >= 0
        }
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
