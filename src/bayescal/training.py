"""The stacked loop: R runs trained as one program on cached features. It never opens an image."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal import rng
from bayescal.errors import MethodError
from bayescal.methods.base import Batch, Method, Samples
from bayescal.optim import Params, per_row
from bayescal.probes import term_gradient_norms
from bayescal.recording import Recorded
from bayescal.training_state import CHECKPOINT_FORMAT, CHOOSERS, State, Trained

CHECKPOINT_SECONDS = 5.0  # a kill loses at most about this much training


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

    @cached_property
    def seen(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Images (n,) that any judged set has, and which of them are in each, (R, n) of zeros and ones.

        Kept: to ask a GPU how many there are is to wait for all that it still has to do.
        """
        images = torch.stack([mask.any(0) for mask in self.judged.values()]).any(0).nonzero()[:, 0]
        return images, {name: mask[:, images].float() for name, mask in self.judged.items()}


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
    state = State.fresh(method, params, data.judged)
    # A method that learns nothing by gradient is judged once, as it is.
    epochs = runs["epochs"] if state.trained else 0
    if state.trained and (epochs < 1 or runs["batch_size"] < 1):
        raise MethodError(f"epochs ({epochs}) and batch_size ({runs['batch_size']}) must be at least 1")
    identity = f"{CHECKPOINT_FORMAT}/{probe_every}/{identity}"
    if checkpoint is not None:
        state.load(checkpoint, identity)
    if observe is not None:
        observe(state.epoch, state.params)
    steps = Steps(method, data, state) if epochs else None
    saved = time.perf_counter()
    for epoch in range(state.epoch, epochs):
        if probe_every and epoch % probe_every == 0:
            state.add_probe(probe(method, state.params, data, epoch))
        terms = _train_epoch(method, data, state, epoch, steps)
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
    return state.result(started)


class Steps:
    """The steps of one training: batch, gradient, checks, update, each as in the one before.

    All that changes from step to step is in tensors that stay where they are, so that a GPU can play a step back.
    """

    def __init__(self, method: Method, data: StackData, state: State):
        self.method, self.data, self.state = method, data, state
        runs, device = method.runs, method.runs.seeds.device
        self.decay = {name: runs["weight_decay"] for name in state.trained if method.decays(name)}
        self.order = epoch_order(runs.seeds, 0, data.train.shape[1], runs["batch_size"])  # (R, steps, B)
        self.rate = torch.zeros_like(runs["learning_rate"])  # (R,)
        self.epoch, self.step, self.at = torch.zeros(3, 1, dtype=torch.int64, device=device)  # `at`: in the epoch
        self.sums: dict[str, Tensor] = {}  # of every loss term in this epoch: (R,)
        self.recording = Recorded(device, method.name) if method.recorded else None

    @property
    def count(self) -> int:
        """Steps of an epoch."""
        return self.order.shape[1]

    def begin(self, epoch: int) -> None:
        """Take an epoch's order and rate."""
        runs = self.method.runs
        self.order.copy_(epoch_order(runs.seeds, epoch, self.data.train.shape[1], runs["batch_size"]))
        self.rate.copy_(self.method.schedule(runs["learning_rate"], epoch, runs["epochs"]))
        self.epoch.fill_(epoch)
        self.step.fill_(epoch * self.count)
        self.at.zero_()
        for value in self.sums.values():
            value.zero_()

    def advance(self) -> None:
        """Take the next step of the epoch."""
        if self.recording is None:
            self._advance()
        else:
            self.recording(self._advance)

    def means(self) -> dict[str, Tensor]:
        """Of every loss term, over the epoch: (R,) each."""
        return {name: value / self.count for name, value in self.sums.items()}

    def _advance(self) -> None:
        method, state = self.method, self.state
        positions = self.order.index_select(1, self.at)[:, 0]
        # A method that is not recorded may ask which step it is.
        step = self.step if method.recorded else int(self.step)
        batch = gather_batch(self.data, method.runs.seeds, positions, self.epoch, step)
        grads, terms = method.gradients(state.params, batch)
        # A row whose loss or gradient is not finite stops where it is; rows never mix, so the others go on.
        finite = torch.isfinite(terms["total"])
        for grad in grads.values():
            finite = finite & torch.isfinite(grad).flatten(1).all(1)
        state.stopped_at.copy_(torch.where(state.alive & ~finite, self.step, state.stopped_at))
        state.alive.logical_and_(finite)
        grads = {name: torch.where(per_row(state.alive, g), g, 0.0) for name, g in grads.items()}
        alive_rate = torch.where(state.alive, self.rate, 0.0)
        method.optimizer.step(state.params, grads, state.optimizer, alive_rate, self.decay)
        for name, value in terms.items():
            self.sums.setdefault(name, torch.zeros_like(value)).add_(value)
        self.step.add_(1)
        self.at.add_(1)


def _train_epoch(method: Method, data: StackData, state: State, epoch: int, steps: Steps) -> dict[str, Tensor]:
    """One pass over each row's samples; returns the epoch's mean of every loss term, (R,) each."""
    steps.begin(epoch)
    for i in range(steps.count):
        resets = method.resets(epoch * steps.count + i)
        if resets is not None:
            for value in state.optimizer.values():
                value.masked_fill_(per_row(resets, value), 0.0)
        steps.advance()
    return steps.means()


def probe(method: Method, params: Params, data: StackData, epoch: int) -> dict[str, Tensor]:
    """Gradient norm (R,) of each loss term at the epoch's first batch, before its step."""
    runs = method.runs
    order = epoch_order(runs.seeds, epoch, data.train.shape[1], runs["batch_size"])
    batch = gather_batch(data, runs.seeds, order[:, 0], epoch, epoch * order.shape[1])
    return term_gradient_norms(method, params, batch)


def gather_batch(data: StackData, seeds: Tensor, positions: Tensor, epoch: int | Tensor, step: int | Tensor) -> Batch:
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
    wanted, masks = data.seen
    right = torch.cat(
        [
            method.logits(prepared, data.features[part], data.environments[part])[:, 0].argmax(-1) == data.labels[part]
            for part in wanted.split(method.images_at_once(len(wanted)))
        ],
        dim=1,
    ).float()  # (R, n)
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
