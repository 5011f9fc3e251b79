"""FewShotClassifier: the scikit-learn-style front door."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from bayescal.backbones import load_backbone
from bayescal.data import ImageSource, Manifest
from bayescal.errors import BayescalError, DataError
from bayescal.estimator.adding import Addition, add_images
from bayescal.estimator.artifact import AUTO
from bayescal.estimator.auto import learn_auto
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.evaluating import Evaluated, evaluate_images
from bayescal.estimator.fitting import FitSettings, learn
from bayescal.estimator.labelled_images import LabelledImages, Words, as_list
from bayescal.estimator.members import MIXTURES
from bayescal.estimator.prediction import Prediction
from bayescal.estimator.predictor import MethodPredictor
from bayescal.estimator.training_data import TrainingData, choose_training_data
from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.features import AUTO as AUTO_CACHE
from bayescal.features import FeatureBank
from bayescal.methods import get_method, method_reference
from bayescal.methods.contract import Method
from bayescal.methods.hyperparameters import check_options
from bayescal.util.seeds import check_seed

log = logging.getLogger(__name__)


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Image classifier learned from a handful of images per class and environment.

    Parameters
    ----------
    method : str or subclass of Method
        "auto" mixes a few methods, each trusted as far as it was right in environments it had not seen;
        "bayes-cal-mixed" mixes Bayes-CAL with several weights of its prior in the same way; or one method: its name
        (`bayescal methods` lists them), a subclass of `bayescal.Method`, or "module:Class".
    backbone : str
        "mini", "ARCH:TAG" or "ARCH:/path/to/weights" of open_clip.
    shots, val_shots : int, optional
        Images per class to learn from, spread over the environments; None uses all. "auto" needs no others. A single
        method also validates, on `val_shots` more (as many as `shots`), or without `shots` on a fifth of all.
    trials : int
        1 trains with the method's defaults; more also tries that many − 1 random trials of its search space, as stacks,
        and keeps the one with the best likelihood on left-out training environments (with one environment: on
        validation images).
    members : int
        Copies trained from other seeds on the same images, whose predictions are averaged (a deep ensemble). They
        differ in their random start, the order of the images and the posterior's noise; a method without posterior
        that starts from words and sees all images in every step has none of these, and its members are equal.
    calibrate : bool
        Fit a temperature on the validation images ("auto" always has one).
    samples : int
        Posterior samples of a prediction; 0 predicts with the posterior mean. No effect without a posterior.
    views : int, optional
        Augmented views of each training image; None is the backbone's own default, 0 trains on the images as they are.
    options : mapping of str to value, optional
        Hyper-parameters of the method, for example {"lambda_irm": 1.0, "epochs": 50}.
    class_words, environment_words : mapping of label to str, optional
        What to call a class or environment; others follow from the label ("art_painting" → "art painting").
    seed : int
        Fixes the split, the initialisation and every random number.
    cache : path, optional
        Folder of the feature cache; "auto" is the user's own for learning and evaluating, and none for predicting; None
        is none at all.
    device : str
        "auto" (a GPU where there is one), "cpu", "cuda", "mps", …
    verbose : bool
        Show progress bars.

    Attributes
    ----------
    classes_, environments_ : ndarray
        The labels seen in `fit`.
    predictor_ : BasePredictor
        What was learned, usable on features.
    threshold_, record_ : float and dict
        The confidence below which an answer is "unsure"; what happened in training.
    expected_ : ExpectedAccuracy or None
        What accuracy to expect in environments never seen, with an interval ("auto" alone).

    Examples
    --------
    Twelve noisy pictures of two colours, from two environments:

    >>> import numpy as np
    >>> from bayescal import FewShotClassifier
    >>> random = np.random.default_rng(0)
    >>> colours = {"tomato": (200, 40, 30), "sky": (60, 120, 220)}
    >>> classes = ["tomato", "sky"] * 6
    >>> environments = ["day"] * 6 + ["night"] * 6
    >>> images = [random.normal(colours[name], 20, (32, 32, 3)).clip(0, 255).astype("uint8") for name in classes]
    >>> classifier = FewShotClassifier("coop", shots=2, options={"epochs": 2}, views=0)
    >>> classifier.fit(images, classes, environments).classes_.tolist()
    ['sky', 'tomato']
    >>> classifier.predict_proba(images).shape
    (12, 2)
    >>> details = classifier.details(images[:1])  # confidence, uncertainty and the most similar environment
    >>> bool(0.5 <= details.confidence[0] <= 1)
    True
    >>> classifier.evaluate(images, classes, environments).scores.images
    12
    """

    def __init__(
        self,
        method: str | type[Method] = AUTO,
        backbone: str = "mini",
        *,
        shots: int | None = None,
        val_shots: int | None = None,
        trials: int = 1,
        members: int = 1,
        calibrate: bool = False,
        samples: int = 20,
        views: int | None = None,
        options: Mapping[str, Any] | None = None,
        class_words: Mapping[Any, str] | None = None,
        environment_words: Mapping[Any, str] | None = None,
        seed: int = 1,
        cache: str | Path | None = AUTO_CACHE,
        device: str = "auto",
        verbose: bool = False,
    ):
        self.method = method
        self.backbone = backbone
        self.shots = shots
        self.val_shots = val_shots
        self.trials = trials
        self.members = members
        self.calibrate = calibrate
        self.samples = samples
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
        images: "Sequence[ImageSource] | Manifest | TrainingData",
        classes: Sequence[Any] | None = None,
        environments: Sequence[Any] | None = None,
        validation: Sequence[bool] | None = None,
        checkpoints: str | Path | None = None,
    ) -> "FewShotClassifier":
        """Learn from labelled images.

        Parameters
        ----------
        images : sequence of images, or Manifest
            Paths, URLs, bytes of files, PIL images or arrays; or a `Manifest`, which has the labels too. Its splits are
            respected: train images are learned from, val images choose and calibrate, test images are never touched.
        classes, environments : sequence of labels, optional
            One label per image. Without environments, all images are taken to be from one.
        validation : sequence of bool, optional
            Marks the images to validate on, where the split is given and not to be drawn.
        checkpoints : path, optional
            A folder; with it, a training that was interrupted continues.

        Returns
        -------
        FewShotClassifier
            This one.
        """
        started = time.perf_counter()
        settings = self._settings(checkpoints)
        words: dict[str, Words] = {"class_words": self.class_words, "environment_words": self.environment_words}
        data = self._labelled(images, classes, environments, validation, words)
        self.__dict__.pop("predictor_", None)  # should this fit fail, the old answers do not go with the new classes
        self.classes_, self.environments_ = data.classes, data.environments
        self.class_words_, self.environment_words_ = data.class_words, data.environment_words
        if len(self.classes_) < 2:
            raise DataError(
                f"expected at least two classes, found {len(self.classes_)}: {self.classes_.tolist()}. A classifier "
                "tells things apart: add images of something else, under a class of its own."
            )
        backbone = load_backbone(self.backbone, self.device)
        log.info("fit: %s on %s, %d images, device %s", self.method, backbone.name, len(data), backbone.device)
        bank = FeatureBank(backbone, folder=self.cache)
        self.predictor_ = (learn_auto if settings.method is None else learn)(bank, backbone, data, settings)
        self.predictor_.record["seconds"] = round(time.perf_counter() - started, 2)
        log.info("learned from %d images in %.1f s", len(data), self.predictor_.record["seconds"])
        return self

    def add(
        self,
        images: "Sequence[ImageSource] | Manifest",
        classes: Sequence[Any] | None = None,
        environments: Sequence[Any] | None = None,
        *,
        compare: bool = True,
    ) -> Addition:
        """Learn from more images too, of classes and environments that may be new; says what that changed.

        No old image has to exist any more: the classifier keeps their features. An image that it has learned from
        already is relabelled where its labels differ, and else left out. `compare`: measure what the images changed.
        """
        self._check_fitted()
        bank = self._bank(self.cache)
        named = images if isinstance(images, Manifest) else None
        words: dict[str, Words] = {
            "class_words": _among(self.class_words, named.classes if named else classes),
            "environment_words": _among(self.environment_words, named.environments if named else environments),
        }
        data = self._labelled(images, classes, environments, None, words)
        said = add_images(self.predictor_, bank, data, compare=compare, verbose=self.verbose)
        self._adopt(said.predictor)
        return said

    def _adopt(self, predictor: BasePredictor) -> None:
        self.predictor_ = predictor
        self.classes_ = np.array(predictor.classes)
        self.environments_ = np.array(predictor.environments)
        self.class_words_ = predictor.class_words

    def _settings(self, checkpoints: str | Path | None) -> FitSettings:
        """What learning is told, checked; numbers may be numpy's own."""
        mixture = self.method if isinstance(self.method, str) and self.method in MIXTURES else None
        method = None if mixture else get_method(self.method)
        options = {name: v.item() if isinstance(v, np.generic) else v for name, v in (self.options or {}).items()}
        if method is None:
            self._refuse_for_auto()
        else:
            check_options(method.space, options, who=f"method {method_reference(method)!r}")
        if self.trials < 1 or self.members < 1 or self.samples < 0:
            raise BayescalError("trials and members must be at least 1 and samples at least 0")
        return FitSettings(
            method=method,
            options=options,
            shots=self.shots,
            val_shots=self.val_shots,
            trials=int(self.trials),
            members=int(self.members),
            calibrate=self.calibrate,
            samples=int(self.samples),
            views=self.views,
            seed=check_seed(int(self.seed)),
            checkpoints=Path(checkpoints) if checkpoints else None,
            verbose=self.verbose,
            mixture=mixture or AUTO,
        )

    def _refuse_for_auto(self) -> None:
        """What only a single method can be told."""
        given = {
            "options": bool(self.options),
            "val_shots": self.val_shots is not None,
            "trials": self.trials > 1,
            "members": self.members > 1,
        }
        if names := [name for name, told in given.items() if told]:
            raise BayescalError(
                f"{names[0]} is for a single method, and {self.method!r} mixes several: choose one with --method "
                '(method="bayes-cal"), or leave it out'
            )

    def _labelled(
        self,
        images: "Sequence[ImageSource] | Manifest | TrainingData",
        classes: Sequence[Any] | None,
        environments: Sequence[Any] | None,
        validation: Sequence[bool] | None,
        words: dict[str, Words],
    ) -> LabelledImages:
        if isinstance(images, Manifest):
            images = choose_training_data(
                images, [], self.shots, self.val_shots, int(self.seed), self.cache, progress=self.verbose
            )
        if not isinstance(images, TrainingData):
            return LabelledImages.from_lists(images, classes, environments, validation, **words)
        if not (classes is None and environments is None and validation is None):
            raise DataError("a manifest has classes, environments and splits of its own: pass it alone")
        return LabelledImages.from_manifest(images.manifest, images.validation, images.contents, **words)

    # ---- predicting -----------------------------------------------------------------------------------------------

    def predict(self, images: Sequence[Any]) -> np.ndarray:
        """The most probable class of each image."""
        return self.details(images).labels

    def predict_proba(self, images: Sequence[Any]) -> np.ndarray:
        """Posterior predictive probabilities (N, C), columns in the order of `classes_`."""
        return self.details(images).probabilities

    def predict_selective(self, images: Sequence[Any]) -> np.ndarray:
        """The most probable class of each image; "unfamiliar" where the image is unlike any that was learned from, else
        "unsure" where the confidence is below the threshold."""
        return self.details(images).selective()

    def details(self, images: Sequence[Any]) -> Prediction:
        """Everything the classifier can say about each image; one that cannot be read is an error."""
        self._check_fitted()
        cache = None if self.cache == AUTO_CACHE else self.cache  # images that are asked about once are not kept
        encoded = self._bank(cache).encode(as_list(images), progress=self.verbose)
        if encoded.failures:
            raise DataError(encoded.describe_failures("could not be read"))
        return self.predictor_.details(encoded.features)

    def evaluate(
        self,
        images: Sequence[ImageSource] | Manifest,
        classes: Sequence[Any] | None = None,
        environments: Sequence[Any] | None = None,
    ) -> Evaluated:
        """Every number of docs/metrics.md on labelled images, or on all images of a `Manifest`.

        `.images` has the answer to every image, `.mistakes()` those that were wrong, and
        `bayescal.report.save_pictures` draws them. Images that cannot be read are left out with a warning; another
        warning says which images the classifier was made from.
        """
        self._check_fitted()
        if isinstance(images, Manifest):
            data = LabelledImages.from_manifest(images)
        else:
            data = LabelledImages.from_lists(images, classes, environments)
        return evaluate_images(self.predictor_, self._bank(self.cache), data, self.verbose)

    @property
    def threshold_(self) -> float:
        """Confidence below which an answer is "unsure"."""
        self._check_fitted()
        return self.predictor_.threshold

    @property
    def expected_(self) -> ExpectedAccuracy | None:
        """What accuracy to expect in an environment never seen; None: it was not measured."""
        self._check_fitted()
        return self.predictor_.expected

    @property
    def record_(self) -> dict[str, Any]:
        """What happened in training: curves, validation accuracy, seconds, notes."""
        self._check_fitted()
        return self.predictor_.record

    def _bank(self, folder: str | Path | None = None) -> FeatureBank:
        return FeatureBank(self.predictor_.backbone, folder)

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
        cache: str | Path | None = AUTO_CACHE,
        device: str = "auto",
        verbose: bool = False,
    ) -> "FewShotClassifier":
        """Read a saved classifier. `backbone` says where the weights are now, if they have moved."""
        predictor = BasePredictor.load(path, backbone, device)
        single = predictor if isinstance(predictor, MethodPredictor) else None
        classifier = cls(
            predictor.method_name,
            predictor.backbone.name,
            members=len(single.seeds) if single else 1,
            samples=predictor.samples,
            options=single.config if single else None,
            class_words=dict(zip(predictor.classes, predictor.class_words, strict=True)),
            seed=single.seeds[0] if single else predictor.record.get("seed", 1),
            cache=cache,
            device=device,
            verbose=verbose,
        )
        classifier._adopt(predictor)
        return classifier


def _among(words: Words, names: Sequence[Any] | None) -> Words:
    """The words of these names alone: what is added need not have every class."""
    present = {str(name) for name in names or ()}
    return {label: said for label, said in (words or {}).items() if str(label) in present}
