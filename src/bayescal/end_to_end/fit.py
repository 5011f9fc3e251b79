"""From a manifest of images to a trained model that says when it is unsure."""

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal import metrics
from bayescal.backbones.base import usable_device
from bayescal.backbones.fingerprint import fingerprint
from bayescal.data import Manifest, Split, few_shot_split
from bayescal.end_to_end.algorithms import PRETRAINED, SCRATCH, ImageTask, get_algorithm, space_of
from bayescal.end_to_end.data import PlainImages, TrainImages, default_workers, describe_problems
from bayescal.end_to_end.network import TimmNetwork
from bayescal.end_to_end.predictor import EndToEndPredictor
from bayescal.end_to_end.train import OnEpoch, TrainingSet, choose_precision, train
from bayescal.end_to_end.vision import Vision, check_vision, load_vision
from bayescal.errors import BayescalWarning, DataError
from bayescal.features.compute import hash_all
from bayescal.features.pipeline import usable_cores
from bayescal.methods.base import Runs
from bayescal.methods.visual.base import VisualMethod
from bayescal.predictor import fit_temperature
from bayescal.space import Config, check_options, default_config


def fit_end_to_end(
    manifest: Manifest,
    *,
    vision: str = "resnet50",
    method: str = "erm",
    weights: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    validation: np.ndarray | None = None,
    shots: int | None = None,
    val_shots: int | None = None,
    calibrate: bool = False,
    seed: int = 1,
    device: str = "cpu",
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    verbose: bool = False,
    on_epoch: OnEpoch | None = None,
) -> EndToEndPredictor:
    """Train a timm model on the images of a manifest by a domain-generalisation algorithm.

    `weights`: None starts from random weights; a file, or "timm" for those that timm publishes. `validation` marks the
    images (N,) to validate on, where the split is not to be drawn. With `checkpoints`, a folder, a training that was
    killed continues. `workers`: processes that prepare batches; None: as many as the device can use.
    `on_epoch` is told how it goes and may end the training.
    """
    started = time.perf_counter()
    algorithm, place = get_algorithm(method), usable_device(device)
    space = space_of(algorithm)
    check_options(space, options or {}, who=f"method {method!r}")
    config = default_config(space, SCRATCH if weights is None else PRETRAINED, **dict(options or {}))
    check_vision(vision)
    workers = default_workers(place) if workers is None else workers
    manifest, hashes, validation, unreadable = _readable(manifest, validation)
    split = _split(manifest, hashes, validation, shots, val_shots, seed)
    for note in split.notes:
        _warn(note)

    model = load_vision(vision, config["image_size"], weights, seed)
    bound, names = _bind(algorithm, model, config, manifest, split, seed, place)
    data = _training_set(manifest, split, model, config, seed)
    trained = train(
        bound,
        data,
        workers=workers,
        checkpoint=Path(checkpoints) / "training.safetensors" if checkpoints else None,
        identity=_identity(model, config, method, seed, manifest, hashes, split),
        progress=f"training {method}" if verbose else None,
        on_epoch=on_epoch,
    )
    if trained.problems:
        _warn(describe_problems(trained.problems, len(split.train)))
    predictor = EndToEndPredictor.of(
        model,
        trained.best,
        place,
        method=method,
        config=config,
        seeds=[seed],
        classes=list(manifest.classes),
        class_words=manifest.classes,
        environments=list(names),
        trained_environments=names,
        prototypes=torch.empty(0),
        draws=0,
    )
    predictor.prototypes = _prototypes(predictor, data.train, workers).to(place)
    accuracy = _set_threshold(predictor, data, calibrate, workers)
    predictor.record = {
        "train_images": len(split.train),
        "validation_images": len(split.val),
        "unreadable_images": unreadable + len(trained.problems),
        "split": split.hash(),
        "notes": list(split.notes),
        "weights": None if weights is None else str(weights),
        "precision": str(bound.network.precision).removeprefix("torch."),
        "best_epoch": trained.best_epoch,
        "curves": trained.curves,
        "validation_accuracy": accuracy,
        "parameters": bound.parameter_count(trained.best),
        "seconds": round(time.perf_counter() - started, 2),
    }
    return predictor


def _readable(manifest: Manifest, validation: np.ndarray | None) -> tuple[Manifest, list[str], np.ndarray | None, int]:
    """Leave out what cannot even be opened; damaged pixels show only later, when an image is decoded."""
    hashes, problems = hash_all(manifest.paths, usable_cores())
    kept = np.array([i for i in range(len(manifest)) if i not in problems], dtype=np.int64)
    if problems:
        _warn(describe_problems([(manifest.paths[i], why) for i, why in problems.items()], len(manifest)))
    chosen = manifest.select(kept)
    gone = sorted(set(range(len(manifest.classes))) - set(chosen.class_ids.tolist()))
    if gone:
        raise DataError(f"no readable image of class {manifest.classes[gone[0]]!r}")
    return chosen, [hashes[i] for i in kept], None if validation is None else validation[kept], len(problems)


def _split(
    manifest: Manifest,
    hashes: list[str],
    validation: np.ndarray | None,
    shots: int | None,
    val_shots: int | None,
    seed: int,
) -> Split:
    if validation is not None:
        return Split(np.flatnonzero(~validation), np.flatnonzero(validation), seed)
    return few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=np.unique(manifest.environment_ids).tolist(),
        shots=shots,
        val_shots=val_shots,
        seed=seed,
        hashes=hashes,
        class_names=manifest.classes,
        environment_names=manifest.environments,
    )


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
    return algorithm(ImageTask(manifest.classes, (names,), device), runs, network), names


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
    model: Vision, config: Config, method: str, seed: int, manifest: Manifest, hashes: list[str], split: Split
) -> str:
    """Hash of everything that decides a training's outcome."""
    start = fingerprint(model.description(), model.preprocess, model.module.state_dict())
    about = [method, config, seed, start, manifest.classes, manifest.environments, split.hash(), hashes]
    about += [manifest.class_ids.tolist(), manifest.environment_ids.tolist()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _prototypes(predictor: EndToEndPredictor, images: TrainImages, workers: int) -> Tensor:
    """Mean direction of each training environment's images, as the trained body sees them: (E, D)."""
    features, rows, _ = predictor.backbone.encode(images.paths, workers)
    member = F.one_hot(torch.from_numpy(images.environments)[rows], len(images.members)).to(features)
    return F.normalize(member.T @ F.normalize(features, dim=-1), dim=-1)


def _set_threshold(predictor: EndToEndPredictor, data: TrainingSet, calibrate: bool, workers: int) -> float | None:
    """Temperature and "unsure" threshold from the validation images; returns the accuracy on them."""
    features, rows, problems = predictor.backbone.encode(data.val.paths, workers)
    if problems:
        _warn(describe_problems(problems, len(data.val.paths)))
    if not len(rows):
        _warn("no validation images: no answer will be called unsure. Give more images per class")
        return None
    labels = data.val_labels[rows]
    if calibrate:
        probs = predictor.posterior(features)[0].cpu()
        if bool((probs.argmax(1) == labels).all()):
            _warn("not calibrated: every validation image was answered correctly. Give more validation images")
        else:
            predictor.temperature = fit_temperature(probs, labels)
    probs = predictor.posterior(features)[0].cpu()[None]
    # A hair lower: in another batch the same image may come out 1e-7 less sure, and it is to stay accepted.
    predictor.threshold = float(metrics.unsure_threshold(probs, labels)) - 1e-6
    return float(metrics.accuracy(probs, labels))


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
