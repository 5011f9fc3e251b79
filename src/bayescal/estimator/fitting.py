"""The steps of `fit`: split, encode, train, choose among trials, calibrate."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones import Backbone
from bayescal.backbones.checks import check_prompts
from bayescal.backbones.vocabulary import word_features
from bayescal.data import Split, few_shot_split
from bayescal.data.splits import Hashes, without_copies
from bayescal.data.synthetic.noise import noise_pictures
from bayescal.data.transforms import normalised
from bayescal.errors import BayescalError, BayescalWarning, DataError
from bayescal.estimator.artifact import AUTO
from bayescal.estimator.drawing import Draw, draw_readable
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.predictor import Predictor
from bayescal.estimator.stacked_training import ORDINARY_FOLDS, stratified_folds
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation import metrics
from bayescal.evaluation.calibration import environment_prototypes
from bayescal.evaluation.familiarity import Familiarity
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.features.feature_rows import describe_failures
from bayescal.methods.contract import Method
from bayescal.methods.hyperparameters import Config, default_config, draw_config
from bayescal.training.forecast import time_said, training_operations
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult, StackResult
from bayescal.training.stack import train_runs
from bayescal.util.console import messages

NOISE = 24  # pictures of it that images are compared with


@dataclass(frozen=True)
class FitSettings:
    """What `FewShotClassifier` was told about learning; the words are those of its parameters."""

    method: type[Method] | None  # None: a mixture of several
    options: Mapping[str, Any]
    shots: int | None
    val_shots: int | None
    trials: int
    members: int
    calibrate: bool
    samples: int
    views: int | None
    seed: int
    checkpoints: Path | None
    verbose: bool
    mixture: str = AUTO  # which one, where there is no single method


@dataclass(frozen=True)
class Material:
    """What is learned from: features of the images that were drawn, and of no others."""

    problem: Problem
    split: Split  # numbers into the problem
    kept: TrainingImages  # what the model keeps of them
    digest: str  # of the split among all images that can be read
    unreadable: int  # images that cannot be, as far as they were looked at


def learn(bank: FeatureBank, backbone: Backbone, images: LabelledImages, settings: FitSettings) -> Predictor:
    """A classifier of these images, on features of the bank, which has the backbone too; with the record of how."""
    check_words(backbone, images, settings)
    draw = partial(draw_split, shots=settings.shots, val_shots=settings.val_shots, seed=settings.seed)
    return learn_from(backbone, images, encode(bank, backbone, images, draw, settings), settings)


def learn_from(backbone: Backbone, names: LabelledImages, material: Material, settings: FitSettings) -> Predictor:
    """The steps after encoding; `names` are those that the problem's labels and environments point to."""
    problem, split = material.problem, material.split
    assert settings.method is not None
    members = train_members(settings.method, problem, split, backbone, settings)
    train, val = (torch.from_numpy(rows) for rows in (split.train, split.val))
    predictor = Predictor.of(
        backbone,
        members,
        classes=names.classes.tolist(),
        class_words=names.class_words,
        environments=names.environments.tolist(),
        prototypes=environment_prototypes(
            problem.features[train], problem.environments[train], len(problem.environment_words)
        ),
        samples=settings.samples,
        familiarity=familiarity_of(backbone, problem.features[train], problem.environments[train], names.class_words),
        training=material.kept,
    )
    accuracy = predictor.calibrate(
        problem.features[val], problem.labels[val], problem.environments[val], temperature=settings.calibrate
    )
    predictor.record = {
        "train_images": len(split.train),
        "validation_images": len(split.val),
        "unreadable_images": material.unreadable,
        "split": material.digest,
        "notes": list(split.notes),
        "views": 0 if problem.views is None else problem.views.shape[1],
        "calibrated": settings.calibrate,
        "trials": settings.trials,
        "best_epoch": members[0].best_epoch,
        "curves": members[0].curves,
        "validation_accuracy": accuracy,
        "checked": _checked(predictor, problem, val),
        "parameters": predictor.bound.parameter_count(predictor.params),
    }
    return predictor


def _checked(predictor: Predictor, problem: Problem, val: Tensor) -> dict[str, Any] | None:
    """How good the answers to validation images (n,) were."""
    if not len(val):
        return None
    names = [str(name) for name in predictor.environments]
    labels, groups = problem.labels[val].cpu(), problem.environments[val].cpu()
    return {"on": "validation", **predictor.evaluate(problem.features[val], labels, groups, names).brief()}


def zero_shot_features(backbone: Backbone, class_words: Sequence[str]) -> Tensor:
    """Text features (C, D) of the classes in the backbone's own sentence."""
    prompts = [backbone.tokenize(backbone.defaults.template.replace("{}", words)) for words in class_words]
    return backbone.text.encode(prompts)


def familiarity_of(
    backbone: Backbone, features: Tensor, environments: Tensor, class_words: Sequence[str]
) -> Familiarity:
    """What is usual among training images (n, D) with their environments (n,) and classes."""
    noise, words = noise_features(backbone).to(features), word_features(backbone).to(features)
    return Familiarity.of(features, environments, zero_shot_features(backbone, class_words), noise, words)


def noise_features(backbone: Backbone) -> Tensor:
    """Features (m, D) of pictures of noise, always the same."""
    how = backbone.preprocess
    pixels = torch.from_numpy(normalised(np.stack(noise_pictures(NOISE, how.size)), how))
    return backbone.encode_images(pixels.permute(0, 3, 1, 2))


def check_words(backbone: Backbone, images: LabelledImages, settings: FitSettings) -> None:
    """Refuse names that the text tower cannot read or tell apart; say what one environment alone cannot teach."""
    method, n_context = settings.method, settings.options.get("n_context")
    if method is None or method.uses_text:
        check_prompts(backbone, images.class_words, n_context, "class", [*map(str, images.classes)])
    if (method is None or method.reads_environment_names) and len(images.environments) > 1:
        names = [*map(str, images.environments)]
        check_prompts(backbone, images.environment_words, n_context, "environment", names)
    if method is not None and len(images.environments) < 2:
        off = "the IRM term and the environment branch are off, and " if method.alignment_terms else ""
        _warn(f"only one environment: {off}nothing is learned about how environments differ")


def encode(
    bank: FeatureBank, backbone: Backbone, images: LabelledImages, draw: Draw, settings: FitSettings
) -> Material:
    """Draw images that can be read, and encode those that were drawn. Each image is hashed once."""
    contents = images.contents or bank.contents(images.sources, progress=settings.verbose)
    drawn = draw_readable(bank, images, contents, draw, settings.verbose)
    if drawn.unreadable:
        _warn(describe_failures(drawn.unreadable, len(images)))
    for note in drawn.split.notes:
        _warn(note)
    numbers, split = drawn.readable[drawn.used], drawn.among_used()
    used, contents = images.take(numbers), contents.take(numbers)
    features = bank.encode(used.sources, contents=contents).features
    views = backbone.defaults.views if settings.views is None else settings.views
    seen = None
    if views and uses_views(settings.method):
        paths = [used.sources[i] for i in split.train]
        taken = contents.take(split.train)
        seen = bank.encode_views(paths, views, progress=settings.verbose, contents=taken).features
    contents.fetched.clear()
    problem = make_problem(backbone, features, used, split, seen)
    order = np.concatenate([split.train, split.val])
    own = problem.features[torch.from_numpy(order).to(backbone.device)]
    kept = TrainingImages.of(own, used.take(order), contents.digests[order], len(split.train))
    return Material(problem, split, kept, drawn.split.hash(), len(drawn.unreadable))


def uses_views(method: type[Method] | None) -> bool:
    """Whether augmented views change what is learned; None: auto."""
    return method is None or method.trained_by_gradient


def make_problem(
    backbone: Backbone, features: Tensor, images: LabelledImages, split: Split, views: Tensor | None
) -> Problem:
    """Of images with their features (N, D) and views (n, V, D) of those to learn from, where the backbone computes."""
    rows = None
    if views is not None:
        rows = torch.full((len(images),), -1, device=backbone.device)
        rows[torch.from_numpy(split.train)] = torch.arange(len(split.train), device=backbone.device)
    return Problem.of(
        backbone,
        features.to(backbone.device),
        images.class_ids,
        images.environment_ids,
        images.class_words,
        images.environment_words,
        views=None if views is None else views.to(backbone.device),
        view_rows=rows,
    )


def draw_split(
    images: LabelledImages, contents: ContentIndex, *, shots: int | None, val_shots: int | None, seed: int
) -> Split:
    """The images marked for validation against the others, or a few-shot draw."""
    if images.validation is not None:
        return marked_split(images, contents, seed)
    return few_shot_split(
        images.class_ids,
        images.environment_ids,
        train_environments=np.unique(images.environment_ids).tolist(),
        shots=shots,
        val_shots=val_shots,
        seed=seed,
        hashes=contents.hexes(),
        class_names=[str(label) for label in images.classes],
        environment_names=[str(label) for label in images.environments],
    )


def marked_split(images: LabelledImages, contents: ContentIndex, seed: int) -> Split:
    """The images marked for validation, and the others to learn from, of copies one: another may be left out."""
    marked = images.validation
    assert marked is not None
    hashes = Hashes.of(contents.hexes())
    train, notes = without_copies(np.flatnonzero(~marked), images.class_ids, images.environment_ids, hashes)
    if gone := images.missing_classes(train):
        raise DataError(
            f"no image of class {gone[0]!r} is left to learn from: all of them are marked for validation, or labelled "
            "as another class, too"
        )
    return Split(train, np.flatnonzero(marked), seed, tuple(notes))


def train_members(
    method: type[Method], problem: Problem, split: Split, backbone: Backbone, settings: FitSettings
) -> StackResult:
    """Train the members of an ensemble as a stack, with the defaults or with the trial that does best elsewhere."""
    space, defaults, options = method.space, backbone.defaults, settings.options
    configs = [default_config(space, defaults, **options)]
    configs += [draw_config(space, defaults, trial, **options) for trial in range(1, settings.trials)]
    train, val = (torch.from_numpy(rows).to(problem.features.device) for rows in (split.train, split.val))
    if len(configs) > 1:
        configs = [_best_elsewhere(method, problem, configs, train, val, settings)]
    eval_sets = {"val": val} if len(val) else {}
    runs = [Run(configs[0], settings.seed + member, train, eval_sets) for member in range(settings.members)]
    _say_time(method, problem, runs, settings)
    results = train_runs(
        method,
        problem,
        runs,
        checkpoints=settings.checkpoints,
        progress=f"training {method.title}" if settings.verbose else None,
    )
    if stopped := next((result.stopped for result in results if result.stopped), None):
        raise BayescalError(f"training did not get anywhere: {stopped}")
    return StackResult.of(results)


def _best_elsewhere(
    method: type[Method],
    problem: Problem,
    configs: Sequence[Config],
    train: Tensor,
    val: Tensor,
    settings: FitSettings,
) -> Config:
    """The trial with the best likelihood on training environments that it was not trained on.

    With one environment there is nowhere else: on validation images, or in ordinary folds. The first of equals, which
    is the defaults.
    """
    parts = _parts_to_choose_by(problem, train, val, settings.seed)
    runs = [Run(config, settings.seed, own) for config in configs for own, _ in parts]
    title = f"choosing among {len(configs)} trials" if settings.verbose else None
    _say_time(method, problem, runs, settings)
    results = iter(train_runs(method, problem, runs, checkpoints=settings.checkpoints, progress=title))
    found: list[float] = []
    for _ in configs:
        losses = [_log_loss(next(results), problem, held, settings.samples) for _, held in parts]
        found.append(float(np.mean(losses)))
    best = int(np.argmin(found))
    if not np.isfinite(found[best]):
        raise BayescalError("training did not get anywhere: no trial has finite answers on images left out")
    return configs[best]


def _parts_to_choose_by(problem: Problem, train: Tensor, val: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    """What a trial learns from, and what it is measured on: images whose class it could have learned."""
    environments = problem.environments[train]
    if len(environments.unique()) == 1 and len(val):
        return [(train, val)]
    folds = environments
    if len(environments.unique()) == 1:
        folds = stratified_folds(problem.labels[train], ORDINARY_FOLDS, seed)
    parts = [(train[folds != fold], train[folds == fold]) for fold in folds.unique().tolist()]
    parts = [(rest, held[torch.isin(problem.labels[held], problem.labels[rest])]) for rest, held in parts]
    # Where nothing of a class is anywhere else, there is nothing to choose by, and the defaults win.
    return [(rest, held) for rest, held in parts if len(held)] or [(train, train)]


def _say_time(method: type[Method], problem: Problem, runs: Sequence[Run], settings: FitSettings) -> None:
    """Before a training that takes long, how long."""
    if settings.verbose and (said := time_said(training_operations(method, problem, runs), problem)):
        messages().print(said, soft_wrap=True)


def _log_loss(result: RunResult, problem: Problem, images: Tensor, samples: int) -> float:
    """Negative log-likelihood of images (n,); infinite for a run that stopped before its end."""
    if result.stopped:
        return float("inf")
    probs = result.predict(problem, problem.features[images], samples=samples, groups=problem.environments[images])
    return float(metrics.nll(probs.probs, problem.labels[images]))


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
