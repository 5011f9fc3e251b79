"""FewShotClassifier: the scikit-learn-style front door."""

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from bayescal import metrics
from bayescal.backbones import Backbone, load_backbone
from bayescal.data import Split, check_names, few_shot_split, to_words
from bayescal.errors import BayescalError, BayescalWarning, DataError
from bayescal.features import Encoded, FeatureBank
from bayescal.methods import get_method
from bayescal.predictor import Details, Predictor, environment_prototypes, fit_temperature
from bayescal.prompts import check_prompts
from bayescal.space import check_options, default_config, draw_config
from bayescal.stacks import Problem, Run, RunResult, train_runs

UNSURE = "unsure"
KEEP = 0.95  # share of the correct validation images that stay above the threshold


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Image classifier learned from a handful of images per class and environment.

    Parameters
    ----------
    method : name of the method, see `bayescal.methods.method_names()`.
    backbone : "mini", "ARCH:TAG" or "ARCH:/path/to/weights" of open_clip.
    shots : training images per class in total, spread over the environments; None uses all images, four fifths of
        each class and environment to train and one fifth to validate.
    val_shots : validation images per class; None means as many as `shots`.
    trials : 1 trains with the method's defaults; more also tries that many − 1 random draws from its search space, as
        one stack, and keeps the best on validation images.
    members : copies trained from other seeds on the same images, whose predictions are averaged (a deep ensemble).
        They differ in their random start, the order of the images and the posterior's noise; a method without posterior
        that starts from words and sees all images in every step has none of these, and its members are equal.
    calibrate : fit a temperature on the validation images.
    draws : posterior draws for prediction; 0 predicts with the posterior mean. No effect on methods without posterior.
    views : augmented views of each training image; None is the backbone's own default, 0 trains on the images as they
        are.
    options : hyper-parameters of the method, for example {"lambda_irm": 1.0, "epochs": 50}.
    class_words, environment_words : what to call a class or environment, {label: "words"}; others are derived from
        the label itself ("art_painting" → "art painting").
    seed : fixes the split, the initialisation and every random number.
    cache : folder of the feature cache; None is the user's cache folder.
    device : "cpu", "cuda", …
    verbose : show progress bars.

    Attributes
    ----------
    classes_, environments_ : the labels seen in `fit`.
    predictor_ : what was learned, usable on features.
    threshold_, record_ : the confidence below which an answer is "unsure"; what happened in training.
    """

    def __init__(
        self,
        method: str = "bayes-cal",
        backbone: str = "mini",
        *,
        shots: int | None = None,
        val_shots: int | None = None,
        trials: int = 1,
        members: int = 1,
        calibrate: bool = False,
        draws: int = 20,
        views: int | None = None,
        options: Mapping[str, Any] | None = None,
        class_words: Mapping[Any, str] | None = None,
        environment_words: Mapping[Any, str] | None = None,
        seed: int = 1,
        cache: str | Path | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ):
        self.method = method
        self.backbone = backbone
        self.shots = shots
        self.val_shots = val_shots
        self.trials = trials
        self.members = members
        self.calibrate = calibrate
        self.draws = draws
        self.views = views
        self.options = options
        self.class_words = class_words
        self.environment_words = environment_words
        self.seed = seed
        self.cache = cache
        self.device = device
        self.verbose = verbose

    # ---- learning -------------------------------------------------------------------------------------------------

    def fit(
        self,
        images: Sequence[Any],
        classes: Sequence[Any],
        environments: Sequence[Any] | None = None,
        validation: Sequence[bool] | None = None,
        checkpoints: str | Path | None = None,
    ) -> "FewShotClassifier":
        """Learn from images (paths, PIL images or arrays) with their classes and the environments they come from.

        `validation` marks the images to validate on, where the split is given and not to be drawn. With
        `checkpoints` (a folder) a training that was interrupted continues.
        """
        started = time.perf_counter()
        method = get_method(self.method)
        check_options(method.space, dict(self.options or {}), who=f"method {self.method!r}")
        if self.trials < 1 or self.members < 1 or self.draws < 0:
            raise BayescalError("trials and members must be at least 1 and draws at least 0")
        images = _as_list(images)
        if environments is None:
            environments = ["all"] * len(images)
        _check_lengths(images, classes, environments, validation)
        self.__dict__.pop("predictor_", None)  # should this fit fail, the old answers do not go with the new classes
        self.classes_, class_ids = np.unique(np.asarray(classes), return_inverse=True)
        self.environments_, environment_ids = np.unique(np.asarray(environments), return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"expected at least two classes, found {len(self.classes_)}: {self.classes_.tolist()}")

        backbone = load_backbone(self.backbone, self.device)
        self._name_words(backbone)
        encoded, kept = self._encode_readable(images, class_ids)
        class_ids, environment_ids = class_ids[kept], environment_ids[kept]
        marked = None if validation is None else np.asarray(validation, dtype=bool)[kept]
        if marked is not None:
            self._check_marked(class_ids[~marked])
        split = self._split(class_ids, environment_ids, [encoded.hashes[i] for i in kept], marked)
        for note in split.notes:
            warnings.warn(note, BayescalWarning, stacklevel=2)

        views = backbone.defaults.views if self.views is None else self.views
        views = views if "epochs" in method.space else 0  # nothing is trained by gradient: nothing would use them
        problem = Problem.of(
            backbone,
            encoded.features[torch.from_numpy(kept)].to(backbone.device),
            class_ids,
            environment_ids,
            self.class_words_,
            self.environment_words_,
            **self._augmented(images, kept, split, views),
        )
        chosen = self._train(problem, split, backbone, checkpoints)
        self.predictor_ = self._predictor(backbone, chosen, problem, split)
        validation_accuracy = self._set_threshold(problem, torch.from_numpy(split.val))
        self.predictor_.record = {
            "train_images": len(split.train),
            "validation_images": len(split.val),
            "unreadable_images": len(images) - len(kept),
            "split": split.hash(),
            "notes": list(split.notes),
            "views": int(views),
            "trials": int(self.trials),
            "best_epoch": chosen[0].best_epoch,
            "curves": chosen[0].curves,
            "validation_accuracy": validation_accuracy,
            "parameters": self.predictor_.bound.parameter_count(self.predictor_.params),
            "seconds": round(time.perf_counter() - started, 2),
        }
        return self

    def _name_words(self, backbone: Backbone) -> None:
        words = {}
        for kind, labels, given in (
            ("class", self.classes_, self.class_words),
            ("environment", self.environments_, self.environment_words),
        ):
            names = [str(label) for label in labels.tolist()]
            by_name = {str(label): text for label, text in (given or {}).items()}
            unknown = sorted(set(by_name) - set(names))
            if unknown:
                raise DataError(f"{kind}_words names {unknown[0]!r}, which is none of the labels: {', '.join(names)}")
            words[kind] = tuple(by_name.get(name, to_words(name)) for name in names)
            check_names(names, kind, words[kind])
        self.class_words_, self.environment_words_ = words["class"], words["environment"]
        space, n_context = get_method(self.method).space, dict(self.options or {}).get("n_context")
        if "n_context" in space or "template" in space:  # the text tower reads the names
            check_prompts(backbone, self.class_words_, n_context)
        if "n_context" in space and "lambda_env" in space and len(self.environments_) > 1:
            check_prompts(backbone, self.environment_words_, n_context)
        if len(self.environments_) < 2:
            warnings.warn(
                "only one environment: the IRM term and the environment branch are off, and nothing is learned about "
                "how environments differ",
                BayescalWarning,
                stacklevel=3,
            )

    def _encode_readable(self, images: list[Any], class_ids: np.ndarray) -> tuple[Encoded, np.ndarray]:
        """Features of all images, and which of them could be read."""
        encoded = self._bank().encode(images, progress=self.verbose)
        failed = {failure.index for failure in encoded.failures}
        kept = np.array([i for i in range(len(images)) if i not in failed], dtype=np.int64)
        gone = sorted(set(range(len(self.classes_))) - set(class_ids[kept].tolist()))
        if gone:
            name = str(self.classes_[gone[0]])
            raise DataError(f"no readable image of class {name!r}: {encoded.describe_failures()}")
        if failed:
            warnings.warn(encoded.describe_failures(), BayescalWarning, stacklevel=3)
        return encoded, kept

    def _check_marked(self, train_class_ids: np.ndarray) -> None:
        gone = sorted(set(range(len(self.classes_))) - set(train_class_ids.tolist()))
        if gone:
            name = str(self.classes_[gone[0]])
            raise DataError(f"no image of class {name!r} is left to learn from: all of them are marked for validation")

    def _split(
        self, class_ids: np.ndarray, environment_ids: np.ndarray, hashes: list[str], marked: np.ndarray | None
    ) -> Split:
        if marked is not None:
            return Split(np.flatnonzero(~marked), np.flatnonzero(marked), self.seed)
        return few_shot_split(
            class_ids,
            environment_ids,
            train_environments=sorted(set(environment_ids.tolist())),
            shots=self.shots,
            val_shots=self.val_shots,
            seed=self.seed,
            hashes=hashes,
            class_names=[str(c) for c in self.classes_],
            environment_names=[str(e) for e in self.environments_],
        )

    def _augmented(self, images: list[Any], kept: np.ndarray, split: Split, views: int) -> dict[str, Tensor]:
        if not views:
            return {}
        encoded = self._bank().encode_views([images[kept[i]] for i in split.train], views, progress=self.verbose)
        rows = torch.full((len(kept),), -1)
        rows[torch.from_numpy(split.train)] = torch.arange(len(split.train))
        return {"views": encoded.features.to(self.device), "view_rows": rows.to(self.device)}

    def _train(
        self, problem: Problem, split: Split, backbone: Backbone, checkpoints: str | Path | None
    ) -> list[RunResult]:
        """Train trials × members as stacks; returns the members of the trial that validates best."""
        space = get_method(self.method).space
        options = {name: v.item() if isinstance(v, np.generic) else v for name, v in (self.options or {}).items()}
        configs = [default_config(space, backbone.defaults, **options)]
        configs += [draw_config(space, backbone.defaults, trial, **options) for trial in range(1, self.trials)]
        train_rows = torch.from_numpy(split.train).to(problem.features.device)
        judged = {"val": torch.from_numpy(split.val).to(problem.features.device)} if len(split.val) else {}
        runs = [Run(c, int(self.seed) + m, train_rows, judged) for c in configs for m in range(self.members)]
        results = train_runs(
            self.method,
            problem,
            runs,
            checkpoints=Path(checkpoints) if checkpoints else None,
            progress=f"training {self.method}" if self.verbose else None,
        )
        trials = [results[i : i + self.members] for i in range(0, len(results), self.members)]
        alive = [trial for trial in trials if not any(r.stopped for r in trial)]
        if not alive:
            raise BayescalError(f"training did not get anywhere: {trials[0][0].stopped or trials[0][-1].stopped}")
        best = lambda trial: sum(max(r.curves.get("val", [0.0])) for r in trial)  # noqa: E731
        return max(alive, key=best)  # the first of equals: the defaults, if they are among them

    def _predictor(self, backbone: Backbone, members: Sequence[RunResult], problem: Problem, split: Split) -> Predictor:
        return Predictor(
            backbone=backbone,
            method=self.method,
            config=members[0].config,
            seeds=[r.seed for r in members],
            params={name: torch.cat([r.best_params[name] for r in members]) for name in members[0].best_params},
            classes=self.classes_.tolist(),
            class_words=self.class_words_,
            environments=self.environments_.tolist(),
            trained_environments=members[0].environments,
            prototypes=environment_prototypes(problem, torch.from_numpy(split.train)),
            draws=int(self.draws),
        )

    def _set_threshold(self, problem: Problem, val: Tensor) -> float | None:
        """Temperature and "unsure" threshold, both from the validation images; returns the accuracy on them."""
        if not len(val):
            warnings.warn(
                "no validation images: no answer will be called unsure. Give more images per class",
                BayescalWarning,
                stacklevel=3,
            )
            return None
        predictor, features, labels = self.predictor_, problem.features[val], problem.labels[val]
        places = problem.environments[val]
        if self.calibrate:
            self._fit_temperature(features, labels, places)
        probs = predictor.posterior(features, places)[0][None]
        # A hair lower: in another batch the same image may come out 1e-7 less sure, and it is to stay accepted.
        predictor.threshold = float(metrics.unsure_threshold(probs, labels, KEEP)) - 1e-6
        return float(metrics.accuracy(probs, labels))

    def _fit_temperature(self, features: Tensor, labels: Tensor, places: Tensor) -> None:
        probs = self.predictor_.posterior(features, places)[0]
        if bool((probs.argmax(1) == labels).all()):
            # The likelihood then only grows with confidence: its best temperature is zero, which is no calibration.
            warnings.warn(
                "not calibrated: every validation image was answered correctly, so nothing tells how often the "
                "classifier is wrong. Give more validation images",
                BayescalWarning,
                stacklevel=4,
            )
            return
        self.predictor_.temperature = fit_temperature(probs, labels)

    # ---- predicting -----------------------------------------------------------------------------------------------

    def predict(self, images: Sequence[Any]) -> np.ndarray:
        """The most probable class of each image."""
        return self.details(images).labels

    def predict_proba(self, images: Sequence[Any]) -> np.ndarray:
        """Posterior predictive probabilities (N, C), columns in the order of `classes_`."""
        return self.details(images).probabilities

    def predict_selective(self, images: Sequence[Any]) -> np.ndarray:
        """The most probable class of each image, or "unsure" where the confidence is below the threshold."""
        details = self.details(images)
        return np.where(details.unsure, UNSURE, details.labels.astype(object))

    def details(self, images: Sequence[Any]) -> Details:
        """Everything the classifier can say about each image; one that cannot be read is an error."""
        self._check_fitted()
        encoded = self._bank().encode(_as_list(images), progress=self.verbose)
        if encoded.failures:
            raise DataError(encoded.describe_failures("could not be read"))
        return self.predictor_.details(encoded.features)

    @property
    def threshold_(self) -> float:
        """Confidence below which an answer is "unsure"."""
        self._check_fitted()
        return self.predictor_.threshold

    @property
    def record_(self) -> dict[str, Any]:
        """What happened in training: curves, validation accuracy, seconds, notes."""
        self._check_fitted()
        return self.predictor_.record

    def _bank(self) -> FeatureBank:
        fitted = getattr(self, "predictor_", None)
        backbone = load_backbone(self.backbone, self.device) if fitted is None else fitted.backbone
        return FeatureBank(backbone, folder=self.cache)

    def _check_fitted(self) -> None:
        if not hasattr(self, "predictor_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("this classifier has not been fitted: call fit(images, classes, environments) first")

    # ---- keeping --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the classifier to a folder that `load` and the command line read."""
        self._check_fitted()
        self.predictor_.save(path, overwrite)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone: str | None = None,
        cache: str | Path | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> "FewShotClassifier":
        """Read a saved classifier. `backbone` says where the weights are now, if they have moved."""
        predictor = Predictor.load(path, backbone, device)
        classifier = cls(
            predictor.method,
            predictor.backbone.name,
            members=len(predictor.seeds),
            draws=predictor.draws,
            options=predictor.config,
            class_words=dict(zip(predictor.classes, predictor.class_words, strict=True)),
            seed=predictor.seeds[0],
            cache=cache,
            device=device,
            verbose=verbose,
        )
        classifier.predictor_ = predictor
        classifier.classes_ = np.array(predictor.classes)
        classifier.environments_ = np.array(predictor.environments)
        classifier.class_words_ = predictor.class_words
        return classifier


def _as_list(images: Sequence[Any]) -> list[Any]:
    if isinstance(images, str | Path):
        raise DataError(f"expected a list of images, found the single path {str(images)!r}: pass [{str(images)!r}]")
    return list(images)


def _check_lengths(
    images: list[Any], classes: Sequence[Any], environments: Sequence[Any], validation: Sequence[bool] | None
) -> None:
    if not images:
        raise DataError("no images to learn from")
    if not len(images) == len(classes) == len(environments):
        raise DataError(
            "images, classes and environments must be equally many, found "
            f"{len(images)}, {len(classes)} and {len(environments)}"
        )
    if validation is not None and len(validation) != len(images):
        raise DataError(f"validation must mark each of the {len(images)} images, found {len(validation)} marks")
