"""From a manifest of images to a trained model that says when it is unsure."""

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayescal.backbones.base import usable_device
from bayescal.backbones.fingerprint import fingerprint
from bayescal.data import Manifest, Split
from bayescal.end_to_end.algorithms import PRETRAINED, SCRATCH, ImageTask, get_algorithm, space_of
from bayescal.end_to_end.data import PlainImages, TrainImages, default_workers, describe_problems
from bayescal.end_to_end.network import TimmNetwork
from bayescal.end_to_end.predictor import EndToEndPredictor
from bayescal.end_to_end.state import State
from bayescal.end_to_end.train import OnEpoch, TrainingSet, choose_precision, train
from bayescal.end_to_end.vision import Vision, check_vision, load_vision
from bayescal.errors import BayescalWarning, DataError
from bayescal.estimator.fitting import draw_split
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation.calibration import environment_prototypes
from bayescal.features.cache_folder import default_folder
from bayescal.features.content_index import ContentIndex
from bayescal.features.threads import usable_cores
from bayescal.methods import method_identity, method_reference
from bayescal.methods.contract import Method, Runs
from bayescal.methods.domain_generalization.base import VisualMethod
from bayescal.methods.hyperparameters import Config, check_options, default_config, first_names


def fit_end_to_end(
    manifest: Manifest,
    *,
    vision: str = "resnet50",
    method: str | type[Method] = "erm",
    weights: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    validation: np.ndarray | None = None,
    contents: ContentIndex | None = None,
    shots: int | None = None,
    val_shots: int | None = None,
    calibrate: bool = False,
    seed: int = 1,
    device: str = "auto",
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    verbose: bool = False,
    on_epoch: OnEpoch | None = None,
) -> EndToEndPredictor:
    """Train a timm model on the images of a manifest by a domain-generalisation algorithm.

    `weights`: None starts from random weights; a file, or "timm" for those that timm publishes. `validation` marks the
    images (N,) to validate on, where the split is not to be drawn; `contents` are those of the images, where they have
    been hashed already. With `checkpoints`, a folder, a training that was killed continues. `workers`: processes that
    prepare batches; None: as many as the device can use. `on_epoch` is told how it goes and may end the training.
    """
    started = time.perf_counter()
    algorithm, on = get_algorithm(method), usable_device(device)
    config = _config(algorithm, options, pretrained=weights is not None)
    check_vision(vision)
    workers = default_workers(on) if workers is None else workers
    readable = _readable(manifest, validation, contents)
    split = _split(readable, shots, val_shots, seed)
    model = load_vision(vision, config["image_size"], weights, seed)
    bound, names = _bind(algorithm, model, config, readable.manifest, split, seed, on)
    data = _training_set(readable.manifest, split, model, config, seed)
    trained = train(
        bound,
        data,
        workers=workers,
        checkpoint=Path(checkpoints) / "training.safetensors" if checkpoints else None,
        identity=_identity(model, config, algorithm, seed, readable, split),
        progress=f"training {algorithm.title}" if verbose else None,
        on_epoch=on_epoch,
    )
    if trained.problems:
        _warn(describe_problems(trained.problems, len(split.train)))
    about = {"method": algorithm, "config": config, "seeds": [seed]}
    predictor = _predictor(model, trained, on, manifest.classes, names, **about)
    accuracy = _finish(predictor, data, readable, split, calibrate, workers)
    predictor.record = {
        **_record(readable, split, trained),
        "weights": None if weights is None else str(weights),
        "precision": str(choose_precision(config["precision"], on)).removeprefix("torch."),
        "validation_accuracy": accuracy,
        "parameters": bound.parameter_count(trained.best),
        "seconds": round(time.perf_counter() - started, 2),
    }
    return predictor


@dataclass(frozen=True, eq=False)
class Readable:
    """The images of a manifest that can be opened, by content; damaged pixels show only when an image is decoded."""

    manifest: Manifest
    validation: np.ndarray | None  # (N,) bool
    contents: ContentIndex
    unreadable: int  # how many could not be opened

    def images(self) -> LabelledImages:
        return LabelledImages.from_manifest(self.manifest, self.validation, self.contents)


def _readable(manifest: Manifest, validation: np.ndarray | None, contents: ContentIndex | None) -> Readable:
    contents = contents or ContentIndex.of(manifest.paths, usable_cores(), default_folder())
    contents.fetched.clear()  # training reads every image many times, from where it lies
    problems = contents.problems
    kept = np.array([i for i in range(len(manifest)) if i not in problems], dtype=np.int64)
    if problems:
        _warn(describe_problems([(manifest.paths[i], why) for i, why in problems.items()], len(manifest)))
    chosen = manifest.select(kept)
    gone = sorted(set(range(len(manifest.classes))) - set(chosen.class_ids.tolist()))
    if gone:
        raise DataError(f"no readable image of class {manifest.classes[gone[0]]!r}")
    marks = None if validation is None else validation[kept]
    return Readable(chosen, marks, contents.take(kept), len(problems))


def _split(readable: Readable, shots: int | None, val_shots: int | None, seed: int) -> Split:
    split = draw_split(readable.images(), readable.contents, shots=shots, val_shots=val_shots, seed=seed)
    for note in split.notes:
        _warn(note)
    return split


def _config(algorithm: type[VisualMethod], options: Mapping[str, Any] | None, pretrained: bool) -> Config:
    space, given = space_of(algorithm), dict(options or {})
    check_options(space, given, who=f"method {method_reference(algorithm)!r}")
    return default_config(space, PRETRAINED if pretrained else SCRATCH, **given)


def _bind(
    algorithm: type[VisualMethod],
    model: Vision,
    config: Config,
    manifest: Manifest,
    split: Split,
    seed: int,
    device: torch.device,
) -> tuple[VisualMethod, tuple[str, ...]]:
    """The algorithm on the timm model, and the names of the environments it learns from."""
    names = tuple(manifest.environments[e] for e in np.unique(manifest.environment_ids[split.train]))
    if len(names) < 2:
        _warn("only one environment: nothing is learned about how environments differ")
    network = TimmNetwork(
        model.module, model.n_features, len(manifest.classes), choose_precision(config["precision"], device)
    )
    runs = Runs.stack(space_of(algorithm), [config], [seed], device)
    return algorithm(ImageTask(manifest.classes, (names,), device, model.n_features), runs, network), names


def _training_set(manifest: Manifest, split: Split, model: Vision, config: Config, seed: int) -> TrainingSet:
    _, environments = np.unique(manifest.environment_ids[split.train], return_inverse=True)
    paths = np.array(manifest.paths, dtype=object)
    train_images = TrainImages(
        paths=tuple(paths[split.train]),
        environments=environments,
        how=model.preprocess,
        batch_size=config["batch_size"],
        seed=seed,
        augment=config["augment"],
    )
    labels = torch.from_numpy(manifest.class_ids.copy())
    val_images = PlainImages(tuple(paths[split.val]), model.preprocess)
    return TrainingSet(train_images, labels[split.train], val_images, labels[split.val])


def _identity(
    model: Vision, config: Config, algorithm: type[VisualMethod], seed: int, readable: Readable, split: Split
) -> str:
    """Hash of everything that decides a training's outcome."""
    manifest, hashes = readable.manifest, readable.contents.hexes()
    start = fingerprint(model.description(), model.preprocess, model.module.state_dict())
    # By the names that hyper-parameters had first, so that a training begun before they were renamed is continued.
    about = [method_identity(algorithm), first_names(algorithm.name, config), seed, start]
    about += [manifest.classes, manifest.environments]
    about += [split.hash(), hashes, manifest.class_ids.tolist(), manifest.environment_ids.tolist()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _predictor(
    model: Vision,
    trained: State,
    device: torch.device,
    classes: tuple[str, ...],
    environments: tuple[str, ...],
    **about: Any,
) -> EndToEndPredictor:
    """With the parameters of the best epoch; prototypes and threshold are still to come (`_finish`)."""
    return EndToEndPredictor.of(
        model,
        trained.best,
        device,
        classes=list(classes),
        class_words=classes,
        environments=list(environments),
        trained_environments=environments,
        prototypes=torch.empty(0),
        samples=0,
        **about,
    )


def _record(readable: Readable, split: Split, trained: State) -> dict[str, Any]:
    """What the model's record says of the images and of the training."""
    return {
        "train_images": len(split.train),
        "validation_images": len(split.val),
        "unreadable_images": readable.unreadable + len(trained.problems),
        "split": split.hash(),
        "notes": list(split.notes),
        "best_epoch": trained.best_epoch,
        "curves": trained.curves,
    }


def _finish(
    predictor: EndToEndPredictor, data: TrainingSet, readable: Readable, split: Split, calibrate: bool, workers: int
) -> float | None:
    """What training does not learn: prototypes of environments, temperature, threshold, and which images they were.

    Returns the validation accuracy.
    """
    features, rows, _ = predictor.backbone.encode(data.train.paths, workers)
    environments = torch.from_numpy(data.train.environments)[rows]
    prototypes = environment_prototypes(features, environments, len(data.train.members))
    predictor.prototypes = prototypes.to(predictor.backbone.device)
    val_features, val_rows, problems = predictor.backbone.encode(data.val.paths, workers)
    if problems:
        _warn(describe_problems(problems, len(data.val.paths)))
    used = np.concatenate([split.train[rows], split.val[val_rows]])
    predictor.training = TrainingImages.of(
        torch.cat([features, val_features]),
        readable.images().take(used),
        readable.contents.digests[used],
        n_train=len(rows),
    )
    return predictor.calibrate(val_features, data.val_labels[val_rows], temperature=calibrate)


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
