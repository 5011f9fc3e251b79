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

from bayescal.engine import rng
from bayescal.engine.cuda_graph import CudaGraphStep
from bayescal.engine.params import Params, per_run
from bayescal.errors import MethodError
from bayescal.methods.contract import Batch, Method, Samples
from bayescal.training.checkpoint_file import warn_of_older
from bayescal.training.gradient_norms import term_gradient_norms
from bayescal.training.state import CHECKPOINT_FORMAT, CHECKPOINT_METRICS, State, Trained

CHECKPOINT_SECONDS = 5.0  # a kill loses at most about this much training, or an epoch
PROGRESS_SECONDS = 0.5  # between two words about how far a long epoch is


@dataclass(frozen=True)
class StackData:
    """What the R runs of a stack are trained and evaluated on; image indices count rows of `features`."""

    features: Tensor  # (N, D): test transform
    labels: Tensor  # (N,)
    environments: Tensor  # (N,): among all environments of the problem
    local: Tensor  # (R, G): an environment's number among the run's own training environments, −1 if not one
    train: Tensor  # (R, n): training images of each run
    # Name → (R, N) bool; those in `CHECKPOINT_METRICS` choose checkpoints.
    eval_sets: dict[str, Tensor] = field(default_factory=dict)
    views: Tensor | None = None  # (U, V, D): augmented views of the training images
    view_rows: Tensor | None = None  # (N,): where an image's views are, −1 if it has none

    @property
    def n_views(self) -> int:
        return 0 if self.views is None else self.views.shape[1]

    def seen_features(self, images: Tensor, view: Tensor | None) -> Tensor:
        """Features of images (R, B) in the given views (R, B); without a view, under the test transform."""
        if view is None or self.views is None or self.view_rows is None:
            return self.features[images]
        return self.views[self.view_rows[images], view]

    @cached_property
    def seen(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Images (n,) that any evaluation set has, and which of them are in each, (R, n) of zeros and ones.

        Kept, because counting them waits for all that a GPU still has to do.
        """
        images = torch.stack([mask.any(0) for mask in self.eval_sets.values()]).any(0).nonzero()[:, 0]
        return images, {name: mask[:, images].float() for name, mask in self.eval_sets.items()}


def epoch_order(seeds: Tensor, epoch: int, n: int, batch_size: int) -> Tensor:
    """Positions of the epoch's samples: (R, steps, B). The last batch is filled up from the epoch's first samples."""
    size = min(batch_size, n)
    steps = math.ceil(n / size)
    order = rng.permutations(seeds, "order", epoch, n)
    return torch.cat([order, order[:, : steps * size - n]], dim=1).view(len(seeds), steps, size)


def view_order(seeds: Tensor, epoch: int, n: int, n_views: int) -> Tensor:
    """In which order each image's views are used, in the `n_views` epochs that this one is among: (R, n, V).

    A view comes back only after all the others: as many views as epochs mean a fresh one in every epoch.
    """
    key = rng.bits(seeds, "view", epoch // n_views, n * n_views)
    return key.view(len(seeds), n, n_views).argsort(dim=2, stable=True).to(torch.int16)


def epoch_views(data: StackData, seeds: Tensor, epoch: int) -> Tensor | None:
    """The view that each image has in this epoch, by its position in the training list: (R, n); None without views."""
    if not data.n_views:
        return None
    return view_order(seeds, epoch, data.train.shape[1], data.n_views)[..., epoch % data.n_views].long()


def train(
    method: Method,
    data: StackData,
    *,
    checkpoint: Path | None = None,
    identity: str = "",
    on_progress: Callable[[float], None] | None = None,
    observe: Callable[[int, Params], None] | None = None,
    gradient_norms_every: int = 0,
) -> Trained:
    """Train every run of the stack; with `checkpoint`, a killed training continues where it was.

    `identity` names what is trained (configs, splits, features): a checkpoint of something else is not continued.
    `observe(epoch, params)` is shown the parameters before training (epoch 0, or where a checkpoint continues) and
    after each epoch; they are the live tensors, to be copied by whoever keeps them. `on_progress` is told how much of
    an epoch was just finished, within long epochs too: they add up to the number of epochs. `gradient_norms_every` =
    k > 0 measures, at the first batch of the first and every k-th epoch after it, the norm of each loss term's
    gradient at `method.measured_parameters`.
    """
    started = time.perf_counter()
    runs = method.runs
    params = method.init(training_samples(data))
    state = State.fresh(method, params, data.eval_sets)
    # A method that learns nothing by gradient is evaluated once, as it is.
    epochs = runs["epochs"] if state.trained else 0
    if state.trained and (epochs < 1 or runs["batch_size"] < 1):
        raise MethodError(f"epochs ({epochs}) and batch_size ({runs['batch_size']}) must be at least 1")
    identity = f"{CHECKPOINT_FORMAT}/{gradient_norms_every}/{identity}"
    if checkpoint is not None:
        warn_of_older(checkpoint, CHECKPOINT_FORMAT)
        state.load(checkpoint, identity)
    if observe is not None:
        observe(state.epoch, state.params)
    steps, saved = None, time.perf_counter()
    for epoch in range(state.epoch, epochs):
        steps = steps or Steps(method, data, state, on_progress)
        if gradient_norms_every and epoch % gradient_norms_every == 0:
            state.add_gradient_norms(measure_gradients(method, state.params, data, epoch))
        terms = _train_epoch(method, data, state, epoch, steps)
        accuracy = evaluate(method, state.params, data, at_end=epoch + 1 == epochs)
        state.close_epoch(terms, accuracy)
        if checkpoint is not None and (time.perf_counter() - saved > CHECKPOINT_SECONDS or epoch + 1 == epochs):
            state.save(checkpoint, identity)
            saved = time.perf_counter()
        if observe is not None:
            observe(state.epoch, state.params)
        steps.progress.tell(1.0)
    if not epochs:
        state.close_epoch({}, evaluate(method, state.params, data))
    _finish(method, data, state)
    return state.result(started)


def _finish(method: Method, data: StackData, state: State) -> None:
    """What validation images choose after training, for the last parameters and for each checkpoint."""
    if "val" not in data.eval_sets:
        return
    val = validation_samples(data)
    state.params = method.finish(state.params, val)
    for best in state.best.values():
        best.params = method.finish(best.params, val)
    if type(method).finish is not Method.finish:
        # The choice changes the predictions: the last accuracies of the curves are those of the finished method.
        state.evaluate_again(evaluate(method, state.params, data))


class EpochProgress:
    """How far an epoch is, told now and then: one with thousands of classes may take an hour."""

    def __init__(self, on_progress: Callable[[float], None] | None):
        self.on_progress, self.said, self.at = on_progress, 0.0, time.perf_counter()

    def begin(self) -> None:
        self.said = 0.0

    def tell(self, share: float) -> None:
        """So much of the epoch is done; its end is always told."""
        now = time.perf_counter()
        if self.on_progress is not None and (share == 1.0 or now - self.at > PROGRESS_SECONDS):
            self.on_progress(share - self.said)
            self.said, self.at = share, now


class Steps:
    """The steps of one training: batch, gradient, checks, update, each as in the one before.

    All that changes from step to step is in tensors that keep their address, so that a GPU can replay a step.
    """

    def __init__(
        self, method: Method, data: StackData, state: State, on_progress: Callable[[float], None] | None = None
    ):
        self.method, self.data, self.state = method, data, state
        self.progress = EpochProgress(on_progress)
        runs, device = method.runs, method.runs.seeds.device
        self.decay = {name: runs["weight_decay"] for name in state.trained if method.decays(name)}
        rates = {name: method.rate_factor(name) for name in state.trained}
        self.factors = {name: factor for name, factor in rates.items() if factor != 1.0}
        self.order = epoch_order(runs.seeds, 0, data.train.shape[1], runs["batch_size"])  # (R, steps, B)
        self.rate = torch.zeros_like(runs["learning_rate"])  # (R,)
        self.step, self.at = torch.zeros(2, 1, dtype=torch.int64, device=device)  # `at`: in the epoch
        self.view_order: Tensor | None = None  # (R, n, V): of each image's views, in as many epochs
        self.view = epoch_views(data, runs.seeds, 0)  # (R, n): of each image in this epoch
        self.sums: dict[str, Tensor] = {}  # of every loss term in this epoch: (R,)
        self.graph_step = CudaGraphStep(device, method.name) if method.capturable else None
        method.begin(runs["epochs"] * self.count)

    @property
    def count(self) -> int:
        """Steps of an epoch."""
        return self.order.shape[1]

    def begin(self, epoch: int) -> None:
        """Take an epoch's order and rate."""
        runs = self.method.runs
        self.order.copy_(epoch_order(runs.seeds, epoch, self.data.train.shape[1], runs["batch_size"]))
        self.rate.copy_(type(self.method).schedule(runs["learning_rate"], epoch, runs["epochs"]))
        self._take_views(epoch)
        self.progress.begin()
        self.step.fill_(epoch * self.count)
        self.at.zero_()
        for value in self.sums.values():
            value.zero_()

    def _take_views(self, epoch: int) -> None:
        """Take the epoch's view of each image; their order is kept as long as it serves, because it is costly."""
        if self.view is None:
            return
        n_views = self.data.n_views
        if self.view_order is None or epoch % n_views == 0:
            self.view_order = view_order(self.method.runs.seeds, epoch, self.data.train.shape[1], n_views)
        self.view.copy_(self.view_order[..., epoch % n_views])

    def advance(self) -> None:
        """Take the next step of the epoch."""
        if self.graph_step is None:
            self._advance()
        else:
            self.graph_step(self._advance)

    def means(self) -> dict[str, Tensor]:
        """Of every loss term, over the epoch: (R,) each."""
        return {name: value / self.count for name, value in self.sums.items()}

    def _advance(self) -> None:
        method, state = self.method, self.state
        positions = self.order.index_select(1, self.at)[:, 0]
        # A method whose step is not captured may ask which step it is.
        step = self.step if method.capturable else int(self.step)
        batch = gather_batch(self.data, positions, self.view, step)
        grads, terms = method.gradients(state.params, batch)
        # A run whose loss or gradient is not finite stops where it is; runs never mix, so the others go on.
        finite = torch.isfinite(terms["total"])
        for grad in grads.values():
            finite = finite & torch.isfinite(grad).flatten(1).all(1)
        state.stopped_at.copy_(torch.where(state.alive & ~finite, self.step, state.stopped_at))
        state.alive.logical_and_(finite)
        grads = {name: torch.where(per_run(state.alive, g), g, 0.0) for name, g in grads.items()}
        stopped = method.stopped(state.params)
        moving = state.alive if stopped is None else state.alive & ~stopped
        rate = torch.where(moving, self.rate, 0.0)
        method.optimizer.step(state.params, grads, state.optimizer, rate, self.decay, self.factors)
        for name, value in terms.items():
            self.sums.setdefault(name, torch.zeros_like(value)).add_(value)
        self.step.add_(1)
        self.at.add_(1)


def _train_epoch(method: Method, data: StackData, state: State, epoch: int, steps: Steps) -> dict[str, Tensor]:
    """One pass over each run's images; returns the epoch's mean of every loss term, (R,) each."""
    steps.begin(epoch)
    for i in range(steps.count):
        resets = method.resets(epoch * steps.count + i)
        if resets is not None:
            for value in state.optimizer.values():
                value.masked_fill_(per_run(resets, value), 0.0)
        steps.advance()
        if i + 1 < steps.count:
            steps.progress.tell((i + 1) / steps.count)
    return steps.means()


def measure_gradients(method: Method, params: Params, data: StackData, epoch: int) -> dict[str, Tensor]:
    """Gradient norm (R,) of each loss term at the epoch's first batch, before its step."""
    runs = method.runs
    order = epoch_order(runs.seeds, epoch, data.train.shape[1], runs["batch_size"])
    batch = gather_batch(data, order[:, 0], epoch_views(data, runs.seeds, epoch), epoch * order.shape[1])
    return term_gradient_norms(method, params, batch)


def gather_batch(data: StackData, positions: Tensor, view: Tensor | None, step: int | Tensor) -> Batch:
    """The images at these positions (R, B) of each run's training list, in the epoch's view (R, n) of each image."""
    images = data.train.gather(1, positions)  # (R, B)
    return Batch(
        features=data.seen_features(images, None if view is None else view.gather(1, positions)),
        labels=data.labels[images],
        environments=data.local.gather(1, data.environments[images]),
        n_train=data.train.shape[1],
        step=step,
    )


def training_samples(data: StackData) -> Samples:
    """Each run's whole training set, test transform."""
    images = data.train
    environments = data.local.gather(1, data.environments[images])
    return Samples(data.features[images], data.labels[images], environments, torch.ones_like(images, dtype=torch.bool))


def validation_samples(data: StackData) -> Samples:
    """Each run's validation set."""
    images, own = masked_images(data.eval_sets["val"])
    environments = data.local.gather(1, data.environments[images])
    return Samples(data.features[images], data.labels[images], environments, own)


@torch.no_grad()
def evaluate(method: Method, params: Params, data: StackData, at_end: bool = True) -> dict[str, Tensor]:
    """Accuracy (R,) on each evaluation set, at the posterior mean.

    Where images are costly (`predict_chunk` None), only the sets that choose are evaluated before the end of training;
    the others are NaN until then.
    """
    if not data.eval_sets:
        return {}
    prepared = method.prepare(params, 0)
    if method.predict_chunk is None:
        unknown = torch.full_like(method.runs.seeds, torch.nan, dtype=torch.float32)
        return {
            name: _evaluate_together(method, prepared, data, mask) if at_end or name in CHECKPOINT_METRICS else unknown
            for name, mask in data.eval_sets.items()
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


def _evaluate_together(method: Method, prepared: Any, data: StackData, mask: Tensor) -> Tensor:
    """Accuracy (R,) where each run sees its own set and no other image."""
    images, own = masked_images(mask)
    if not images.shape[1]:
        return torch.full_like(method.runs.seeds, torch.nan, dtype=torch.float32)
    groups = torch.where(own, data.environments[images], -1)  # −1: fills up a run's list, not an image of its set
    right = method.logits(prepared, data.features[images], groups)[:, 0].argmax(-1) == data.labels[images]
    return (right & own).sum(1) / own.sum(1)


def masked_images(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of each run's images, filled up with others where runs have fewer: mask (R, N) → (R, n), (R, n) bool."""
    images = mask.int().argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(1).max())]
    return images, mask.gather(1, images)
