"""Rows of a table that train a whole image model: the domain-generalisation algorithms from pixels, on all images.

    trial × seed × fold ─► every image of the training environments, 80 % to learn from ─► one training ─► Record

What OoD-Bench and DomainBed do, and what the paper quotes beside few-shot methods on frozen features. Folds, test sets,
selection rules and records are those of every other row; what is learned from is not, and tables say so. One training
after the other; a kill loses the one at hand.
"""

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.records import Record, RecordedBackbone, Scores, SplitInfo
from bayescal.benchmark.runner import KEY_FORMAT, REPORTED, versions
from bayescal.benchmark.store import Store
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import MethodVariant
from bayescal.data.datasets.base import Fold
from bayescal.data.splits import Hashes, few_shot_split
from bayescal.errors import BayescalError, DataError
from bayescal.evaluation.calibration import unsure_threshold
from bayescal.evaluation.scoring import score
from bayescal.methods import find_method, method_identity, method_reference
from bayescal.methods.hyperparameters import Config, Space, check_options, first_names, settings_of
from bayescal.util.jsonable import finite

if TYPE_CHECKING:
    from bayescal.backbones.defaults import TrainingDefaults
    from bayescal.end_to_end.data import PlainImages
    from bayescal.end_to_end.state import State
    from bayescal.engine.params import Params
    from bayescal.methods.domain_generalization.base import VisualMethod

PURPOSE = "main/end-to-end"
MEASURED = ("test_val", "ood_val")  # sets whose accuracy is measured after every epoch besides validation's


@dataclass(frozen=True)
class EndToEnd:
    """Which image model to train, from which weights, and what is fixed in its training."""

    vision: str = "resnet18"
    weights: str | None = None  # a file, "timm" to download, None: random numbers
    options: Mapping[str, Any] = field(default_factory=dict)  # epochs, image_size …, the same for every algorithm

    def __post_init__(self) -> None:
        from bayescal.end_to_end.algorithms import COMMON
        from bayescal.end_to_end.vision import check_vision

        check_vision(self.vision)
        check_options(COMMON, dict(self.options), who="an end-to-end training")

    @property
    def title(self) -> str:
        start = "random weights" if self.weights is None else f"weights of {Path(self.weights).name}"
        return f"{self.vision} from {start}"

    @property
    def defaults(self) -> "TrainingDefaults":
        from bayescal.end_to_end.algorithms import PRETRAINED, SCRATCH

        return SCRATCH if self.weights is None else PRETRAINED

    @cached_property
    def identity(self) -> list[str]:
        """The model and where it starts, by content where that is a file."""
        if self.weights is None or self.weights == "timm":
            return [self.vision, str(self.weights)]
        try:
            return [self.vision, hashlib.sha256(Path(self.weights).read_bytes()).hexdigest()]
        except OSError as error:
            raise DataError(f"--vision-weights {self.weights}: cannot be read ({error.strerror or error})") from error

    def variant(self, method: str) -> MethodVariant:
        algorithm = find_method(method)
        reference = method_reference(algorithm)
        return MethodVariant(f"{reference}-end-to-end", reference, f"{algorithm.title}, end to end", self.options)

    def search_space(self, variant: MethodVariant) -> Space:
        from bayescal.end_to_end.algorithms import get_algorithm, space_of

        space = space_of(get_algorithm(variant.method))
        return {name: param for name, param in space.items() if name not in variant.fixed}


def algorithms(asked: Sequence[str] | None, quick: bool) -> list[str]:
    """Those of the methods asked for that train end to end; by default all that there are (quick: ERM alone)."""
    from bayescal.end_to_end.algorithms import algorithm_names

    if asked is None:
        return ["erm"] if quick else algorithm_names()
    return [name for name in asked if ":" in name or name in algorithm_names() if find_method(name).end_to_end]


@dataclass(frozen=True, eq=False)
class EndToEndRun:
    """One training of one algorithm, and the key under which its record is or will be."""

    how: EndToEnd
    prepared: PreparedDataset
    variant: MethodVariant
    fold: Fold
    seed: int
    trial: Trial

    @cached_property
    def key(self) -> str:
        prepared = self.prepared
        content = [
            KEY_FORMAT, PURPOSE, method_identity(self.variant.method), first_names(self.variant.method, self.config),
            self.seed, prepared.dataset.name, self.fold.name, prepared.splits(self.fold, self.seed).digest,
            self.digest, self.how.identity, prepared.manifest.classes, prepared.manifest.environments,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]

    @property
    def config(self) -> Config:
        return self.trial.config

    @property
    def epochs(self) -> int:
        return self.config["epochs"]

    @cached_property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """Manifest rows to learn from and to validate on: all of the training environments, none of any other set."""
        prepared, fold = self.prepared, self.fold
        sets, hashes = prepared.splits(fold, self.seed).eval_sets, Hashes.of(prepared.hashes)
        others = np.unique(np.concatenate([sets[name] for name in ("test", *MEASURED) if name in sets]))
        split = few_shot_split(
            prepared.manifest.class_ids, prepared.manifest.environment_ids, shots=None, val_shots=None, seed=self.seed,
            train_environments=fold.train_environments, hashes=hashes, forbidden=hashes.same_as(others),
            pool=fold.pool, class_names=prepared.manifest.classes, environment_names=prepared.manifest.environments,
        )  # fmt: skip
        if fold.val is None:
            return split.train, split.val
        val = np.flatnonzero(fold.val & ~hashes.same_as(others))  # the data set has validation images of its own
        train = np.sort(np.concatenate([split.train, split.val]))
        return train[~hashes.same_as(val)[train]], val

    @cached_property
    def digest(self) -> str:
        """Of the images learned from and validated on, by content."""
        parts = [sorted(str(self.prepared.hashes[i]) for i in rows) for rows in self.images]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def train(self, device: str, tick: Callable[[], None]) -> Record:
        """Train, and score every checkpoint that a selection rule may choose."""
        from bayescal.end_to_end.fit import fit_end_to_end
        from bayescal.features.content_index import ContentIndex

        prepared, (train, val) = self.prepared, self.images
        rows, watch = np.concatenate([train, val]), Watch(self, tick)
        digests = np.frombuffer(bytes.fromhex("".join(str(h) for h in prepared.hashes)), np.uint8).reshape(-1, 32)
        started = time.perf_counter()
        try:
            predictor = fit_end_to_end(
                prepared.manifest.select(rows), vision=self.how.vision, method=self.variant.method,
                weights=self.how.weights, options=self.config, seed=self.seed, device=device, on_epoch=watch,
                validation=np.arange(len(rows)) >= len(train),
                contents=ContentIndex.known(digests[rows], {}),
            )  # fmt: skip
        except BayescalError as error:
            if not watch.curves:  # nothing was trained: not a run that diverged, but something to put right
                raise
            return self._record(watch, {}, str(error), time.perf_counter() - started, device)
        watch.parameters = predictor.record["parameters"]
        watch.checkpoints["val"] = (watch.best, predictor.record["best_epoch"])
        return self._record(watch, watch.scores(), None, time.perf_counter() - started, device)

    def _record(
        self, watch: "Watch", scores: dict[str, Scores], stopped: str | None, seconds: float, device: str
    ) -> Record:
        from bayescal.end_to_end.train import choose_precision

        prepared, (train, val) = self.prepared, self.images
        splits = prepared.splits(self.fold, self.seed)
        sizes = {**{name: len(images) for name, images in splits.eval_sets.items()}, "val": len(val)}
        precision = str(choose_precision(self.config["precision"], torch.device(device))).removeprefix("torch.")
        space = self.how.search_space(replace(self.variant, fixed={}))
        return Record(
            key=self.key,
            dataset=prepared.dataset.name,
            variant=self.variant.key,
            method=self.variant.method,
            purpose=PURPOSE,
            fold=self.fold.name,
            train_environments=tuple(prepared.manifest.environments[e] for e in self.fold.train_environments),
            seed=self.seed,
            trial=self.trial.number,
            config=self.config,
            settings=settings_of(space, self.config),
            shots=0,  # all there are
            val_shots=0,
            split=SplitInfo(self.digest, len(train), sizes),
            backbone=RecordedBackbone(self.how.vision, ":".join(self.how.identity), 0, precision),
            curves={name: [finite(v) for v in values] for name, values in watch.curves.items()},
            gradient_norms={},
            chosen={name: epoch for name, (_, epoch) in watch.checkpoints.items() if name != "last"},
            scores=scores,
            samples=0,
            parameters=watch.parameters,
            stopped=stopped,
            seconds=round(seconds, 2),
            versions=versions(device),
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )


class Watch:
    """What a training is told after every epoch: keeps the checkpoints that selection rules ask for, and the curves."""

    def __init__(self, run: EndToEndRun, tick: Callable[[], None]):
        self.run, self.tick = run, tick
        self.sets = run.prepared.splits(run.fold, run.seed).eval_sets
        self.curves: dict[str, list[float]] = {}
        self.checkpoints: dict[str, tuple[Params, int]] = {}
        self.parameters = 0

    def __call__(self, method: "VisualMethod", state: "State") -> bool:
        from bayescal.end_to_end.train import accuracy

        self.method, self.best = method, state.best
        measured = {name: self.curves.get(name, []) for name in MEASURED if name in self.sets}
        for name, curve in measured.items():
            images, labels = self._images(name)
            curve.append(accuracy(method, state.params, images, labels))
        copy = lambda: {name: value.clone() for name, value in state.params.items()}  # noqa: E731
        # The later of equals, as elsewhere.
        if (curve := measured.get("ood_val")) and curve[-1] >= max(curve):
            self.checkpoints["ood_val"] = (copy(), state.epoch)
        if state.epoch == self.run.epochs:
            self.checkpoints["last"] = (copy(), state.epoch)
        self.curves = {**{name: list(values) for name, values in state.curves.items()}, **measured}
        self.tick()
        return False

    def scores(self) -> dict[str, Scores]:
        """Of the checkpoint that each rule reports, on the set that it reports on (`runner.REPORTED`)."""
        found = {}
        manifest = self.run.prepared.manifest
        for checkpoint, reported in REPORTED.items():
            if checkpoint in self.checkpoints:
                params, _ = self.checkpoints[checkpoint]
                name = next(candidate for candidate in reported if candidate in self.sets)
                threshold = unsure_threshold(*self._probabilities(params, "val"))
                probs, labels = self._probabilities(params, name)
                groups = torch.from_numpy(manifest.environment_ids[self._rows(name)].copy())
                (own,) = score(probs, labels, groups, threshold, manifest.classes, manifest.environments)
                found[checkpoint] = replace(own, eval_set=name)
        return found

    def _rows(self, name: str) -> np.ndarray:
        return self.run.images[1] if name == "val" else self.sets[name]

    @cached_property
    def _preprocess(self) -> Any:
        from bayescal.end_to_end.vision import load_vision

        return load_vision(self.run.how.vision, self.run.config["image_size"]).preprocess

    def _images(self, name: str) -> "tuple[PlainImages, Tensor]":
        from bayescal.end_to_end.data import PlainImages

        manifest, rows = self.run.prepared.manifest, self._rows(name)
        paths = tuple(manifest.paths[i] for i in rows)
        return PlainImages(paths, self._preprocess), torch.from_numpy(manifest.class_ids[rows].copy())

    @torch.no_grad()
    def _probabilities(self, params: "Params", name: str) -> tuple[Tensor, Tensor]:
        """Probabilities (1, N, C) of the images of a set and their labels; what cannot be read is answered evenly."""
        from bayescal.end_to_end.data import default_workers, load, to_inputs

        images, labels = self._images(name)
        device, prepared = self.method.runs.seeds.device, self.method.prepare(params, 0)
        classes = len(self.run.prepared.manifest.classes)
        probs = torch.full((len(labels), classes), 1 / classes)
        for loaded in load(images, range(len(images)), default_workers(device), device):
            if len(loaded.rows):
                logits = self.method.logits(prepared, to_inputs(loaded.pixels, images.how, device))[0, 0]
                probs[loaded.rows] = logits.softmax(-1).cpu()
        return probs[None], labels


def plan_end_to_end(
    how: EndToEnd, prepared: PreparedDataset, variant: MethodVariant, trials: Sequence[Trial], seeds: Sequence[int]
) -> list[EndToEndRun]:
    """A training of every trial on every fold and seed; data without image files are refused."""
    if not all(prepared.manifest.paths):
        raise DataError(
            f"{prepared.dataset.title}: --end-to-end learns from pixels, and a packed data set holds features alone. "
            "Give the folder of images instead."
        )
    return [
        EndToEndRun(how, prepared, variant, fold, seed, trial)
        for trial in trials
        for fold in prepared.folds
        for seed in seeds
    ]


def run_end_to_end(
    store: Store,
    planned: Sequence[EndToEndRun],
    device: str,
    advance: Callable[[int], None],
    wait: Callable[[int], None],
) -> list[Record]:
    """The records of these trainings; what is missing is trained one after the other, or waited for."""
    by_key = {run.key: run for run in planned}
    while missing := [key for key in by_key if key not in store.finished(list(by_key))]:
        for key in missing:
            if store.claim([key]):
                with store.releasing():
                    store.add([by_key[key].train(device, partial(advance, 1))])
        if left := len(set(by_key) - store.finished(list(by_key))):
            wait(left)
    return store.records(list(by_key))
