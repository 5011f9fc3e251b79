"""The loop: batches of pixels in, parameters of an image model out."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayescal.end_to_end.data import Loaded, PlainImages, TrainImages, load, to_inputs
from bayescal.end_to_end.network import evaluating
from bayescal.end_to_end.optimizer import DictAdam
from bayescal.end_to_end.state import State
from bayescal.engine.params import Params
from bayescal.errors import BayescalError, BayescalWarning, MethodError
from bayescal.methods.contract import Batch
from bayescal.util.progress import Bar, progress_bar

if TYPE_CHECKING:
    from bayescal.methods.domain_generalization.base import VisualMethod

CHECKPOINT_SECONDS = 30.0  # a kill loses at most about this much, or one epoch
LOOK_EVERY = 50  # steps between looks at the loss: each look makes the GPU wait

# Called after each epoch with the algorithm, its network set to prediction, and where training stands; True: stop here.
OnEpoch = Callable[["VisualMethod", State], bool | None]

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TrainingSet:
    """Images to learn from and to validate on, with their classes: labels are (n,) and (m,)."""

    train: TrainImages
    labels: Tensor
    val: PlainImages
    val_labels: Tensor


def choose_precision(wanted: str, device: torch.device) -> torch.dtype:
    """bfloat16 needs no loss scaling, which algorithms with their own gradients could not use; float16 would."""
    if wanted == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if able else torch.float32
    if wanted not in PRECISIONS:
        raise MethodError(f"precision {wanted!r}: expected auto, {' or '.join(PRECISIONS)}")
    return PRECISIONS[wanted]


def train(
    method: "VisualMethod",
    data: TrainingSet,
    *,
    workers: int = 0,
    checkpoint: Path | None = None,
    identity: str = "",
    progress: str | None = None,
    on_epoch: OnEpoch | None = None,
) -> State:
    """Train until the last epoch, until the loss is not finite, or until `on_epoch` answers True.

    With `checkpoint`, a training that was killed continues where it was; `identity` names what is trained, so that a
    checkpoint of something else is never continued.
    """
    runs, device = method.runs, method.runs.seeds.device
    epochs, steps = runs["epochs"], data.train.steps_per_epoch
    if epochs < 1 or runs["batch_size"] < 1:
        raise MethodError(f"epochs ({epochs}) and batch_size ({runs['batch_size']}) must be at least 1")
    method.begin(epochs * steps)
    params = method.init(None)
    state = State(params, {name: value.clone() for name, value in params.items()})
    optimizer = _optimizer(method, params)
    if checkpoint is not None and state.load(checkpoint, identity):
        optimizer.load(state.optimizer)
    predictor = evaluating(method)
    before, started = state.seconds, time.perf_counter()
    saved = started
    todo = range(state.epoch * steps, epochs * steps)
    with (
        closing(load(data.train, todo, workers, device)) as batches,
        progress_bar(progress, epochs * steps, unit="steps", done=todo.start) as bar,
    ):
        for epoch in range(state.epoch, epochs):
            # For networks with dropout: their numbers, too, are those of an uninterrupted training.
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(int(runs.seeds[0]) * 1_000_003 + epoch)
                values = _train_epoch(method, data, state, optimizer, batches, epoch, bar)
            if values is None:
                return _stopped(state, epoch)
            if len(data.val.paths):
                values["val"] = accuracy(predictor, params, data.val, data.val_labels, workers)
            state.seconds = before + time.perf_counter() - started
            state.close_epoch(values)
            bar.say(", ".join(f"{name} {value:.3f}" for name, value in values.items() if name in ("ce", "val")))
            stop = on_epoch is not None and bool(on_epoch(predictor, state))
            last = stop or epoch + 1 == epochs
            if checkpoint is not None and (last or time.perf_counter() - saved > CHECKPOINT_SECONDS):
                state.optimizer = optimizer.state()
                state.save(checkpoint, identity)
                saved = time.perf_counter()
            if stop:
                break
    return state


def _optimizer(method: "VisualMethod", params: Params) -> DictAdam:
    learned = method.learned(params)
    # Vectors (biases, scales of normalisation layers) are not decayed: they are what keeps features in range.
    decayed = {name for name, value in learned.items() if method.decays(name) and value.dim() > 2}
    factors = {name: method.rate_factor(name) for name in learned}
    return DictAdam(learned, decayed, float(method.runs["weight_decay"][0]), factors)


def _train_epoch(
    method: "VisualMethod",
    data: TrainingSet,
    state: State,
    optimizer: DictAdam,
    batches: Iterator[Loaded],
    epoch: int,
    bar: Bar,
) -> dict[str, float] | None:
    """One epoch; the mean of every term of the loss, or None if a loss or a parameter is not finite."""
    runs, device, how = method.runs, method.runs.seeds.device, data.train.how
    environments = torch.from_numpy(data.train.environments)
    rate = float(type(method).schedule(runs["learning_rate"], epoch, runs["epochs"])[0])
    steps = data.train.steps_per_epoch
    sums: dict[str, Tensor] = {}
    for i in range(steps):
        loaded, step = next(batches), epoch * steps + i
        state.problems += [problem for problem in loaded.problems if problem not in state.problems]
        batch = Batch(
            features=to_inputs(loaded.pixels, how, device)[None],
            labels=data.labels[loaded.rows].to(device)[None],
            environments=environments[loaded.rows].to(device)[None],
            n_train=len(data.labels),
            step=step,
        )
        resets = method.resets(step)
        if resets is not None and bool(resets.any()):
            optimizer.reset()
        grads, terms = method.gradients(state.params, batch)
        stopped = method.stopped(state.params)
        if stopped is None or not bool(stopped):
            optimizer.step(grads, rate)
        for name, value in terms.items():
            sums[name] = sums.get(name, 0.0) + value[0] / steps
        bar.advance()
        if i % LOOK_EVERY == LOOK_EVERY - 1 and not bool(torch.isfinite(sums["total"])):
            return None
    finite = [torch.isfinite(value).all() for value in (sums["total"], *method.learned(state.params).values())]
    return {name: float(value) for name, value in sums.items()} if bool(torch.stack(finite).all()) else None


def _stopped(state: State, epoch: int) -> State:
    """Without one good epoch there is nothing to keep; with one, its parameters are."""
    what = f"training stopped in epoch {epoch + 1}: the loss or a parameter is not finite. Try a smaller learning rate"
    if not state.best_epoch:
        raise BayescalError(what)
    warnings.warn(f"{what}. The model is that of epoch {state.best_epoch}", BayescalWarning, stacklevel=3)
    return state


@torch.no_grad()
def accuracy(method: "VisualMethod", params: Params, images: PlainImages, labels: Tensor, workers: int = 0) -> float:
    """Share of the readable images that are answered correctly; `method` with its network set to prediction."""
    right = total = 0
    device = method.runs.seeds.device
    prepared = method.prepare(params, 0)
    for loaded in load(images, range(len(images)), workers, device):
        if len(loaded.rows):
            logits = method.logits(prepared, to_inputs(loaded.pixels, images.how, device))[0, 0]  # (n, C)
            right += int((logits.argmax(1).cpu() == labels[loaded.rows]).sum())
            total += len(loaded.rows)
    return right / max(total, 1)
