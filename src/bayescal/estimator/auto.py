"""`auto`, what `fit` does by default: a few methods, each trusted as far as the user's own environments bear it out.

    L = Σ_i log Σ_k w_k p_k(y_i | x_i; trained without i's environment)        (`evaluation/stacking.py`)

All labelled images are learned from: weights, temperature, the "unsure" threshold and what to expect elsewhere come
from models that had not seen an image's environment. Images that the user has marked for validation are respected:
nothing is learned from them, and the model is measured on them.
"""

import warnings
from typing import Any

import numpy as np
import torch

from bayescal.backbones import Backbone
from bayescal.data import Split, few_shot_split
from bayescal.errors import BayescalWarning
from bayescal.estimator.fitting import FitSettings, Material, check_words, encode, familiarity_of, marked_split
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.members import MIXTURES
from bayescal.estimator.predictor import StackedPredictor, member_predictor
from bayescal.estimator.stacked_training import Case, Stacked, train_stacked
from bayescal.evaluation.calibration import at_temperature, environment_prototypes, unsure_threshold
from bayescal.evaluation.scoring import evaluate
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.training.problem import Problem


def learn_auto(
    bank: FeatureBank, backbone: Backbone, images: LabelledImages, settings: FitSettings
) -> StackedPredictor:
    """A stacked model of these images, with the record of how; steps as in `fitting.learn`."""
    check_words(backbone, images, settings)
    material = encode(bank, backbone, images, lambda own, contents: draw(own, contents, settings), settings)
    return learn_auto_from(backbone, images, material, settings)


def learn_auto_from(
    backbone: Backbone, names: LabelledImages, material: Material, settings: FitSettings
) -> StackedPredictor:
    """The steps after encoding, as in `fitting.learn_from`."""
    problem, split = material.problem, material.split
    train = torch.from_numpy(split.train).to(problem.features.device)
    (stacked,) = train_stacked(
        problem,
        backbone.defaults,
        [Case(train, settings.seed)],
        settings.samples,
        settings.checkpoints,
        "training" if settings.verbose else None,
        MIXTURES[settings.mixture],
    )
    for note in stacked.notes:
        warnings.warn(note, BayescalWarning, stacklevel=3)
    predictor = stacked_predictor(backbone, problem, names, stacked, settings.samples)
    predictor.mixture_name = settings.mixture
    predictor.training = material.kept
    predictor.record = {
        "seed": settings.seed,
        "train_images": len(split.train),
        "validation_images": len(split.val),
        "unreadable_images": material.unreadable,
        "split": material.digest,
        "notes": [*split.notes, *stacked.notes],
        "views": 0 if problem.views is None else problem.views.shape[1],
        "left_out": "environments" if stacked.folds.by_environment else "folds",
        "left_out_images": int(stacked.folds.used.sum()),
        "members": stacked.table(),
        "checked": checked(stacked, predictor),
        "validation_accuracy": _accuracy(predictor, problem, split),
    }
    return predictor


def draw(images: LabelledImages, contents: ContentIndex, settings: FitSettings) -> Split:
    """`shots` images per class in all, or every image but copies; what is marked for validation stays apart."""
    if images.validation is not None:
        return marked_split(images, contents, settings.seed)
    split = few_shot_split(
        images.class_ids,
        images.environment_ids,
        train_environments=np.unique(images.environment_ids).tolist(),
        shots=settings.shots,
        val_shots=0,
        seed=settings.seed,
        hashes=contents.hexes(),
        class_names=[str(label) for label in images.classes],
        environment_names=[str(label) for label in images.environments],
    )
    everything = np.sort(np.concatenate([split.train, split.val]))  # without shots a fifth comes as validation images
    return Split(everything, np.array([], dtype=np.int64), settings.seed, split.notes)


def stacked_predictor(
    backbone: Backbone, problem: Problem, images: LabelledImages, stacked: Stacked, samples: int
) -> StackedPredictor:
    """The members trained on all images, with weights, temperature and thresholds from those left out."""
    train = stacked.case.train
    features, environments = problem.features[train], problem.environments[train]
    shared: dict[str, Any] = {
        "classes": images.classes.tolist(),
        "class_words": images.class_words,
        "environments": images.environments.tolist(),
        "prototypes": environment_prototypes(features, environments, len(problem.environment_words)),
        "samples": samples,
    }
    members = {
        name: member_predictor(
            backbone,
            shared,
            method=result.method,
            config=result.config,
            seeds=[result.seed],
            params=result.params,
            trained_environments=result.environments,
        )
        for name, result in stacked.members.items()
    }
    return StackedPredictor(
        backbone=backbone,
        members=members,
        weights=stacked.weights,
        threshold=_threshold(stacked),
        temperature=stacked.temperature,
        familiarity=familiarity_of(backbone, features, environments, images.class_words),
        expected=stacked.expected(images.classes.tolist()),
        **shared,
    )


def _threshold(stacked: Stacked) -> float:
    """The confidence below which to say "unsure", from the images left out."""
    if not len(stacked.labels):
        warnings.warn(
            "no image could be left out to learn from its absence, so no answer will be called unsure. Give at least "
            "two images per class",
            BayescalWarning,
            stacklevel=5,
        )
        return 0.0
    return float(unsure_threshold(at_temperature(stacked.mixed, stacked.temperature)[None], stacked.labels))


def checked(stacked: Stacked, predictor: StackedPredictor) -> dict[str, Any] | None:
    """How good the answers to images left out were: environment after environment, or fold after fold."""
    probs, labels, folds = stacked.elsewhere()
    if not len(labels):
        return None
    by_environment = stacked.folds.by_environment
    evaluation = evaluate(
        probs.cpu(),
        labels.cpu(),
        folds.cpu() if by_environment else torch.zeros_like(labels).cpu(),
        threshold=predictor.threshold,
        classes=[str(name) for name in predictor.classes],
        environments=stacked.folds.names if by_environment else ("all",),
    )
    return {"on": "environments" if by_environment else "folds", **evaluation.brief()}


def _accuracy(predictor: StackedPredictor, problem: Problem, split: Split) -> float | None:
    """On the images that the user marked for validation."""
    if not len(split.val):
        return None
    val = torch.from_numpy(split.val).to(problem.features.device)
    answers = predictor.posterior(problem.features[val], problem.environments[val]).probs.argmax(1)
    return float((answers == problem.labels[val]).float().mean())
