"""More images for a model that exists: more of the same, a new class, a new environment.

A model keeps the features, labels and contents of the images it was made from (`training_images.py`), so it is learned
anew from those and the new ones, as `fit` would from all of them: in seconds, and no old image has to exist any more.
What the new images changed is measured on themselves: before, by the old model; after, by models that learned from
everything but the third of them that they answer.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bayescal.data import Split
from bayescal.errors import ArtifactError, BayescalWarning, DataError
from bayescal.estimator.artifact import AUTO
from bayescal.estimator.auto import learn_auto_from
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.fitting import FitSettings, Material, check_words, learn_from, make_problem, uses_views
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.members import MIXTURES
from bayescal.estimator.predictor import Predictor, StackedPredictor
from bayescal.estimator.stacked_training import Case, stratified_folds, train_on
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation.stacking import mixture
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.features.feature_rows import Failure
from bayescal.methods import get_method
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import train_runs

THIRDS = 3  # the new images are answered in so many parts, each by models that learned from the others
Learned = Predictor | StackedPredictor


@dataclass(frozen=True)
class Addition:
    """A model that has learned from more images, and what that changed."""

    predictor: Learned
    added: int  # images
    relabelled: int  # of them: images it had already, under another class or environment
    known: int  # images left out because it had them already
    unreadable: tuple[Failure, ...]
    new_classes: tuple[str, ...]
    new_environments: tuple[str, ...]
    compared: int = 0  # images that it did not have, which `before` and `after` are measured on
    before: float | None = None  # accuracy of the old model on them; None: not measured
    after: float | None = None  # accuracy of models that learned from all but the third with the image in it


@dataclass(frozen=True, eq=False)
class _Together:
    """Old images, then new ones, under one table of names."""

    images: LabelledImages
    features: Tensor  # (N, D)
    digests: np.ndarray  # (N, 32)
    split: Split  # the old images that were validated on still are; everything new is learned from
    new: np.ndarray  # (m,): numbers of the new ones
    relabelled: np.ndarray  # (m,) bool: those that the old model had under other labels


def add_images(
    predictor: BasePredictor,
    bank: FeatureBank,
    images: LabelledImages,
    *,
    compare: bool = True,
    checkpoints: Path | None = None,
    verbose: bool = False,
) -> Addition:
    """Learn anew from what a model keeps and from more images; an image it has is relabelled where labels differ."""
    started = time.perf_counter()
    old, kept = _able(predictor)
    settings = _settings(old, checkpoints, verbose)
    fresh, digests, features, failures = _encode(bank, images, verbose)
    together = _join(old, kept, fresh, features, digests)
    check_words(old.backbone, together.images, settings)
    problem = _problem(old, bank, together, settings)
    material = Material(problem, together.split, _keep(together), together.split.hash(), len(failures))
    new = (
        learn_auto_from(old.backbone, together.images, material, settings)
        if isinstance(old, StackedPredictor)
        else learn_from(old.backbone, together.images, material, settings)
    )
    before, after, compared = _compare(old, new, problem, together, settings) if compare else (None, None, 0)
    names = [str(name) for name in old.classes], [str(name) for name in old.environments]
    said = Addition(
        predictor=new,
        added=len(together.new),
        relabelled=int(together.relabelled.sum()),
        known=len(fresh) - len(together.new),
        unreadable=failures,
        new_classes=tuple(str(name) for name in new.classes if str(name) not in names[0]),
        new_environments=tuple(str(name) for name in new.environments if str(name) not in names[1]),
        compared=compared,
        before=before,
        after=after,
    )
    new.record |= {"additions": _history(old, said), "seconds": round(time.perf_counter() - started, 2)}
    return said


def _able(predictor: BasePredictor) -> tuple[Learned, TrainingImages]:
    if not isinstance(predictor, Predictor | StackedPredictor):
        raise ArtifactError(
            "a model that was trained end to end cannot be added to, because its features change when it learns: fit "
            "it again with all images"
        )
    if isinstance(predictor, StackedPredictor) and predictor.mixture_name not in MIXTURES:
        raise ArtifactError(
            f"this model is the mixture {predictor.mixture_name!r}, which this version does not know (it has "
            f"{', '.join(MIXTURES)}): fit it again with all images, old and new"
        )
    if predictor.training is None:
        raise ArtifactError(
            "this model keeps none of the images it was made from, as all did before version 0.2: fit it again with "
            "all images, old and new"
        )
    return predictor, predictor.training


def _settings(old: Learned, checkpoints: Path | None, verbose: bool) -> FitSettings:
    """As the model was learned; what was chosen among trials stays chosen."""
    single = old if isinstance(old, Predictor) else None
    return FitSettings(
        method=get_method(single.method) if single else None,
        options=dict(single.config) if single else {},
        shots=None,
        val_shots=None,
        trials=1,
        members=len(single.seeds) if single else 1,
        calibrate=bool(single and old.record.get("calibrated", old.temperature != 1)),
        samples=old.samples,
        views=old.record.get("views", 0),
        seed=single.seeds[0] if single else old.record.get("seed", 1),
        checkpoints=checkpoints,
        verbose=verbose,
        mixture=AUTO if single else cast(StackedPredictor, old).mixture_name,
    )


def _encode(
    bank: FeatureBank, images: LabelledImages, verbose: bool
) -> tuple[LabelledImages, np.ndarray, Tensor, tuple[Failure, ...]]:
    """The images that can be read, one of each content, with contents (n, 32) and features (n, D)."""
    contents = images.contents or bank.contents(images.sources, progress=verbose)
    encoded = bank.encode(images.sources, progress=verbose, contents=contents)
    contents.fetched.clear()
    failed = {failure.index for failure in encoded.failures}
    read = np.array([i for i in range(len(images)) if i not in failed], dtype=np.int64)
    if not len(read):
        raise DataError(encoded.describe_failures("could not be read"))
    if failed:
        _warn(encoded.describe_failures())
    first = contents.first[read]
    for own, labels in (("classes", images.class_ids), ("environments", images.environment_ids)):
        if len(torn := read[labels[read] != labels[first]]):
            i, j = int(torn[0]), int(contents.first[torn[0]])
            tables = getattr(images, own)
            raise DataError(
                f"the same image has two {own}: {tables[labels[j]]} as {_name(images, j)} and {tables[labels[i]]} as "
                f"{_name(images, i)}. Keep one of them"
            )
    one = np.unique(first)
    return images.take(one), contents.digests[one], encoded.features[torch.from_numpy(one)], encoded.failures


def _name(images: LabelledImages, i: int) -> str:
    source = images.sources[i]
    return str(source) if isinstance(source, str | Path) else f"image {i} of the list"


def _join(
    old: Learned, kept: TrainingImages, fresh: LabelledImages, features: Tensor, digests: np.ndarray
) -> _Together:
    """Old and new images; of those that are both, the labels given now count."""
    classes, class_words, old_class, new_class = _tables(
        old.classes, old.class_words, fresh.classes.tolist(), fresh.class_words
    )
    environments, environment_words, old_environment, new_environment = _tables(
        old.environments, kept.environment_words, fresh.environments.tolist(), fresh.environment_words
    )
    own = np.stack([old_class[kept.class_ids], old_environment[kept.environment_ids]])  # (2, n)
    given = np.stack([new_class[fresh.class_ids], new_environment[fresh.environment_ids]])  # (2, m)
    number = {digest.tobytes(): i for i, digest in enumerate(kept.hashes)}
    position = np.array([number.get(digest.tobytes(), -1) for digest in digests])
    same = (position >= 0) & (own[:, position] == given).all(0)
    new, stays = np.flatnonzero(~same), np.ones(len(kept), dtype=bool)
    if not len(new):
        raise DataError(f"nothing to add: the model has learned from these {len(fresh)} images, with the same labels")
    stays[position[new][position[new] >= 0]] = False
    stay = np.flatnonzero(stays)
    images = LabelledImages(
        sources=(*(kept.names[i] for i in stay), *(fresh.sources[i] for i in new)),
        class_ids=np.concatenate([own[0, stay], given[0, new]]),
        environment_ids=np.concatenate([own[1, stay], given[1, new]]),
        classes=classes,
        environments=environments,
        class_words=class_words,
        environment_words=environment_words,
    )
    validated = np.concatenate([kept.validation[stay], np.zeros(len(new), dtype=bool)])
    split = Split(np.flatnonzero(~validated), np.flatnonzero(validated), 0)
    if gone := images.missing_classes(split.train):
        raise DataError(f"no image of class {gone[0]!r} is left to learn from: all were given other classes")
    return _Together(
        images=images,
        features=torch.cat([kept.features[stay], features[torch.from_numpy(new)]]),
        digests=np.concatenate([kept.hashes[stay], digests[new]]),
        split=split,
        new=np.arange(len(stay), len(images)),
        relabelled=position[new] >= 0,
    )


def _tables(
    old: Sequence[Any], old_words: Sequence[str], new: Sequence[Any], new_words: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray, np.ndarray]:
    """All names, sorted, with their words; and the number in there of each old and each new name."""
    words = dict(zip(map(str, new), new_words, strict=True)) | dict(zip(map(str, old), old_words, strict=True))
    known = set(map(str, old))
    table = np.unique(np.asarray([*old, *(name for name in new if str(name) not in known)]))
    number = {str(name): i for i, name in enumerate(table.tolist())}
    old_places, new_places = (np.array([number[str(name)] for name in own], dtype=np.int64) for own in (old, new))
    return table, tuple(words[str(name)] for name in table.tolist()), old_places, new_places


def _keep(together: _Together) -> TrainingImages:
    rows = np.concatenate([together.split.train, together.split.val])
    features = together.features[torch.from_numpy(rows)]
    return TrainingImages.of(features, together.images.take(rows), together.digests[rows], len(together.split.train))


def _problem(old: Learned, bank: FeatureBank, together: _Together, settings: FitSettings) -> Problem:
    views = None
    if settings.views and uses_views(settings.method):
        views = _views(bank, together, settings)
        if views is None:
            _warn(
                f"learned without the {settings.views} augmented views of each image that the model was learned with: "
                "a model does not keep them, and the files of some old images are gone or have changed"
            )
    return make_problem(old.backbone, together.features, together.images, together.split, views)


def _views(bank: FeatureBank, together: _Together, settings: FitSettings) -> Tensor | None:
    """Views of the images to learn from, out of the cache or from files that are what they were; None: not of all."""
    train = together.split.train
    sources = [together.images.sources[i] for i in train]
    now = bank.contents(sources)
    unchanged = (now.digests == together.digests[train]).all(1)
    sources = [source if same else f"{source} (changed)" for source, same in zip(sources, unchanged, strict=True)]
    contents = ContentIndex.known(together.digests[train], {}, now.fetched)
    found = bank.encode_views(sources, settings.views or 0, progress=settings.verbose, contents=contents)
    return None if found.failures else found.features


# ---- what it changed ----------------------------------------------------------------------------------------------


def _compare(
    old: Learned, new: Learned, problem: Problem, together: _Together, settings: FitSettings
) -> tuple[float | None, float | None, int]:
    """Accuracy on new images before and after, and of how many: those that are not the only one of their class.

    Relabelled ones are left out, because the old model learned from them, or was chosen by them.
    """
    rows = torch.from_numpy(together.new[~together.relabelled])
    labels = problem.labels.cpu()
    rows = rows[labels[torch.from_numpy(together.split.train)].bincount(minlength=len(new.classes))[labels[rows]] > 1]
    if not len(rows):
        return None, None, 0
    position = {str(name): i for i, name in enumerate(new.classes)}
    known = torch.tensor([position[str(name)] for name in old.classes])
    said = old.posterior(together.features[rows]).probs.argmax(1).cpu()
    before = float((known[said] == labels[rows]).float().mean())
    after = float((_left_out(new, problem, together, rows, settings) == labels[rows]).float().mean())
    return before, after, len(rows)


def _left_out(new: Learned, problem: Problem, together: _Together, rows: Tensor, settings: FitSettings) -> Tensor:
    """Answers (m,) to images (m,), each of models that learned from everything but its third."""
    device, train = problem.features.device, torch.from_numpy(together.split.train)
    cells = problem.labels[rows] * len(problem.environment_words) + problem.environments[rows]
    thirds = stratified_folds(cells.cpu(), THIRDS, settings.seed)
    parts = [train[~torch.isin(train, rows[thirds == third])].to(device) for third in range(THIRDS)]
    probs = torch.zeros(len(rows), len(new.classes))
    if isinstance(new, StackedPredictor):
        case = Case(train.to(device), settings.seed)
        title = "comparing" if settings.verbose else None
        own_members = [member for member in MIXTURES[new.mixture_name] if member.name in new.members]
        trained = train_on(problem, new.backbone.defaults, own_members, [case], [parts], None, title)
        groups = [[results[0][third] for results in trained.values()] for third in range(THIRDS)]
        weights = new.weights.cpu()
    else:
        val = {"val": torch.from_numpy(together.split.val).to(device)} if len(together.split.val) else {}
        runs = [Run(new.config, seed, part, val) for part in parts for seed in new.seeds]
        results = train_runs(get_method(new.method), problem, runs)
        n = len(new.seeds)
        groups = [list(results[third * n : (third + 1) * n]) for third in range(THIRDS)]
        weights = torch.full((n,), 1 / n)
    checkpoint = "last" if isinstance(new, StackedPredictor) else "val"
    for third, models in enumerate(groups):
        own = thirds == third
        asked = problem.features[rows[own].to(device)]
        said = [model.predict(problem, asked, samples=new.samples, checkpoint=checkpoint).probs[0] for model in models]
        probs[own] = mixture(weights, torch.stack(said).cpu()).to(probs)
    return probs.argmax(1)


def _history(old: Learned, said: Addition) -> list[dict[str, Any]]:
    """What was added to the model, time after time."""
    about = {"images": said.added, "classes": list(said.new_classes), "environments": list(said.new_environments)}
    about |= {"before": said.before, "after": said.after, "compared": said.compared}
    return [*old.record.get("additions", []), about]


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
