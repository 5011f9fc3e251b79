"""What a model folder has to hold: checked when it is read, so that a wrong one is refused in a sentence.

Checksums find accidents. A folder may also be written by another program, with checksums that fit and entries that do
not: of another type, shape or range. In the order in which a model is read:

    check_config    types and ranges of config.json
    check_shared    tensors that every kind of model has, against the config and each other
    check_method    a method's hyper-parameters, by its own rules, and its parameters
    restoring       whatever else does not fit becomes an `ArtifactError`
    check_answers   the answers to a few made-up features: what prediction needs fits together
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayescal.errors import ArtifactError, BayescalError, MethodError
from bayescal.estimator.artifact import STACKED
from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.methods.hyperparameters import Space, check_options, check_value
from bayescal.util.typed import read

if TYPE_CHECKING:
    from bayescal.backbones.defaults import TrainingDefaults

Label = str | int | float | bool | None
_MISFITS = (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class _Backbone:
    name: str
    fingerprint: str
    label: str = ""


@dataclass(frozen=True)
class _Images:
    train: int
    validation: int
    environment_words: tuple[str, ...]


@dataclass(frozen=True)
class _Shared:
    """What config.json says of every model."""

    classes: tuple[Label, ...]
    class_words: tuple[str, ...]
    environments: tuple[Label, ...]
    backbone: dict[str, Any]
    samples: int
    threshold: float | None
    temperature: float
    training: dict[str, Any]
    unfamiliar_below: float | None = None
    expected: dict[str, Any] | None = None
    training_images: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Training:
    """What it says of the training, as far as commands read it."""

    train_images: int = 0
    validation_images: int = 0
    validation_accuracy: float | None = None
    calibrated: bool = False
    views: int = 0
    seed: int = 1
    seconds: float = 0.0
    additions: tuple[dict[str, Any], ...] = ()
    checked: dict[str, Any] | None = None
    members: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True)
class _Kept:
    samples: int
    version: int
    form: dict[str, Any]


@dataclass(frozen=True)
class _OfMethod:
    """What it says of a method: of the only one, or of each member."""

    method: str
    config: dict[str, Any]
    seeds: tuple[int, ...]
    trained_environments: tuple[str, ...]
    method_from: dict[str, str | None] | None = None
    prepared: dict[str, Any] | None = None


@contextmanager
def restoring(path: str | Path | None, what: str) -> Iterator[None]:
    """Call it an `ArtifactError` if what was read from `path` does not fit together; no path: it was not read."""
    try:
        yield
    except _MISFITS as error:
        if path is None or isinstance(error, BayescalError | torch.OutOfMemoryError):  # says what is wrong itself
            raise
        said = str(error).strip().partition("\n")[0] or "nothing more is known"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ArtifactError(f"{path} is no model that can be read, {what} does not fit: {kind}{said}") from error


# ---- config.json --------------------------------------------------------------------------------------------------


def check_config(config: Mapping[str, Any], path: str | Path) -> None:
    """Refuse a config whose entries are missing, or of another type or range than every kind of model has."""
    with restoring(path, "config.json"):
        said = _known(_Shared, config)
        _expect(len(said.classes) > 0, "classes: there are none")
        _expect(len({repr(label) for label in said.classes}) == len(said.classes), "classes: one is there twice")
        _same("class_words", len(said.class_words), "classes", len(said.classes))
        _expect(len(said.environments) > 0, "environments: there are none")
        _known(_Backbone, said.backbone, "backbone")
        _expect(said.samples >= 0, f"samples: expected 0 or more, found {said.samples}")
        _expect(0 < said.temperature < math.inf, f"temperature: expected a number above 0, found {said.temperature}")
        _finite("threshold", said.threshold)
        _finite("unfamiliar_below", said.unfamiliar_below)
        training = _known(_Training, said.training, "training")
        _expect(abs(training.seed) < 1 << 63, "training.seed: it has more than 63 bits")
        _expect(training.views >= 0, f"training.views: expected 0 or more, found {training.views}")
        if said.expected is not None:
            _check_expected(said.expected)
        if said.training_images is not None:
            kept = _known(_Images, said.training_images, "training_images")
            _expect(min(kept.train, kept.validation) >= 0, "training_images: a number of images is negative")
            _same(
                "training_images.environment_words", len(kept.environment_words), "environments", len(said.environments)
            )
        for name, own in _methods(config).items():
            _check_own(own, name)


def _methods(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the method, or of each member, by where they stand."""
    if config.get("kind") != STACKED:
        return {"": config}
    members = read(dict[str, dict[str, Any]], config.get("members"), "members")
    _expect(len(members) > 0, "members: there are none")
    return {f"members.{name}": own for name, own in members.items()}


def _check_own(config: Mapping[str, Any], where: str) -> None:
    own = _known(_OfMethod, config, where)
    _expect(len(own.seeds) > 0, f"{_at(where, 'seeds')}: there are none")
    _expect(all(abs(seed) < 1 << 63 for seed in own.seeds), f"{_at(where, 'seeds')}: one has more than 63 bits")
    for name, value in own.config.items():
        is_finite = not isinstance(value, float) or math.isfinite(value)
        _expect(is_finite, f"{_at(where, 'config')}.{name}: expected a finite number")
    if own.prepared is not None:
        kept = _known(_Kept, own.prepared, _at(where, "prepared"))
        _expect(kept.samples >= 0, f"{_at(where, 'prepared')}.samples: expected 0 or more, found {kept.samples}")


def _check_expected(value: Mapping[str, Any]) -> None:
    expected = read(ExpectedAccuracy, value, "expected")
    for name in ("unseen", "low", "high", "level", "seen", "worst_accuracy"):
        share = getattr(expected, name)
        _expect(share is None or 0 <= share <= 1, f"expected.{name}: expected a number from 0 to 1, found {share}")


def _known(kind: Any, value: Mapping[str, Any], where: str = "") -> Any:
    """The entries that `kind` has; others are of kinds of models, or of versions, that are not known here."""
    return read(kind, {f.name: value[f.name] for f in fields(kind) if f.name in value}, where)


# ---- tensors ------------------------------------------------------------------------------------------------------


def check_shared(tensors: Mapping[str, Tensor], config: Mapping[str, Any], path: str | Path) -> None:
    """Refuse tensors of another shape or kind than the config says; the config has been checked."""
    with restoring(path, "a tensor"):
        n_classes, n_environments = len(config["classes"]), len(config["environments"])
        prototypes = _numbers(tensors, "environment_prototypes", (n_environments, None))
        dim = prototypes.shape[1]
        _expect(dim > 0, "environment_prototypes: its vectors are empty")
        if config.get("unfamiliar_below") is not None:
            images = _numbers(tensors, "familiarity/images", (None, dim))
            _expect(len(images) > 0, "familiarity/images: there are none")
            _numbers(tensors, "familiarity/texts", (n_classes, dim))
            since = [name for name in ("familiarity/noise", "familiarity/words") if name in tensors]  # newest last
            _expect(since != ["familiarity/words"], "familiarity/words: words without noise")
            for name in since:
                _expect(len(_numbers(tensors, name, (None, dim))) > 0, f"{name}: there is none")
            scores = 2 + len(since)
            _numbers(tensors, "familiarity/mean", (scores,))
            deviation = _numbers(tensors, "familiarity/deviation", (scores,))
            _expect(bool((deviation > 0).all()), "familiarity/deviation: expected numbers above 0")
        if (about := config.get("training_images")) is not None:
            _check_images(tensors, about["train"], about["validation"], dim, n_classes, n_environments)
        if config.get("kind") == STACKED:
            weights = _numbers(tensors, "weights", (len(config["members"]),))
            on_simplex = bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-3
            _expect(on_simplex, "weights: expected numbers that are not negative and have the sum 1")


def _check_images(
    tensors: Mapping[str, Tensor], train: int, validation: int, dim: int, n_classes: int, n_environments: int
) -> None:
    n = train + validation
    _numbers(tensors, "training/images", (train, dim))
    _numbers(tensors, "training/validation_images", (validation, dim))
    _numbers(tensors, "training/lengths", (n,))
    _whole(tensors, "training/hashes", (n, 32), torch.uint8)
    names = _whole(tensors, "training/names", (None,), torch.uint8)
    _same("training/names", int((names == 0).sum()) + 1, "training_images", max(n, 1))
    for name, count in (("classes", n_classes), ("environments", n_environments)):
        ids = _whole(tensors, f"training/{name}", (n,), torch.int64)
        within = bool(((ids >= 0) & (ids < count)).all())
        _expect(within, f"training/{name}: expected numbers from 0 to {count - 1}")


def _numbers(tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...]) -> Tensor:
    """A tensor of finite floating-point numbers of this shape; None: any size."""
    value = _shaped(tensors, name, shape)
    _expect(value.is_floating_point(), f"{name}: expected floating-point numbers, found {value.dtype}")
    _expect(bool(value.isfinite().all()), f"{name}: not all of its numbers are finite")
    return value


def _whole(tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...], kind: torch.dtype) -> Tensor:
    value = _shaped(tensors, name, shape)
    _expect(value.dtype == kind, f"{name}: expected {kind}, found {value.dtype}")
    return value


def _shaped(tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...]) -> Tensor:
    _expect(name in tensors, f"{name}: is missing")
    value = tensors[name]
    fits = value.dim() == len(shape) and all(e is None or e == n for e, n in zip(shape, value.shape, strict=True))
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    _expect(fits, f"{name}: expected the shape ({wanted}), found {tuple(value.shape)}")
    return value


# ---- a method, and what it answers ----------------------------------------------------------------------------------


def check_method(
    space: Space,
    config: Mapping[str, Any],
    params: Mapping[str, Tensor],
    n_members: int,
    defaults: "TrainingDefaults | None",
) -> None:
    """Refuse hyper-parameters that the method does not take, and parameters that are not those of its members.

    Values are compared with the backbone's defaults, if it has any.
    """
    try:
        check_options(space, config)
        if defaults is not None:
            for name, value in config.items():
                check_value(space[name], value, defaults, f"option {name!r}")
    except MethodError as error:
        raise ValueError(str(error)) from error
    for name in params:
        value = params[name]
        _expect(value.dim() > 0, f"params/{name}: expected one for each member, found a single number")
        _same(f"params/{name}", len(value), "seeds", n_members)
        if value.is_floating_point():
            _expect(bool(value.isfinite().all()), f"params/{name}: not all of its numbers are finite")


def check_width(prototypes: Tensor, dim: int, path: str | Path) -> None:
    """Refuse vectors (E, D) that are not of the backbone's features; the others have been compared with these."""
    with restoring(path, "a tensor"):
        _same("environment_prototypes: numbers in a vector", prototypes.shape[1], "the backbone's features have", dim)


def check_answers(probs: Tensor, n: int, n_classes: int) -> None:
    """Refuse probabilities of n images that are none."""
    found = tuple(probs.shape)
    _expect(found == (n, n_classes), f"probabilities: expected the shape {(n, n_classes)}, found {found}")
    _expect(bool(probs.isfinite().all()), "probabilities: not all of them are finite")


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _same(name: str, found: int, other: str, expected: int) -> None:
    _expect(found == expected, f"{name}: expected {expected}, as many as {other}, found {found}")


def _finite(name: str, value: float | None) -> None:
    _expect(value is None or math.isfinite(value), f"{name}: expected a finite number, found {value}")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
