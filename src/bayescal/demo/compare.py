"""Every method on the same images: trained, chosen on validation images, and scored where it was never trained.

A method tries the few settings below and keeps, for each seed, the one that validates best in the training
environments; nothing is chosen on a test. `fit` is `FewShotClassifier("logistic-regression")`, on the same images.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from bayescal import FewShotClassifier
from bayescal.backbones.base import Backbone
from bayescal.demo.scenes import FIT, Question, Scene
from bayescal.evaluation.calibration import unsure_threshold
from bayescal.evaluation.scoring import Scores, score
from bayescal.evaluation.statistics import mean_and_error
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import Config, default_config
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import train_runs

POSTERIOR_SAMPLES = 20
# What `fit` does by default mixes this method with ten others and takes minutes for all of these seeds (docs/auto.md).
FAST = "logistic-regression"
# Bayes-CAL as the paper trains it, so that its trainings are as short as CAL's.
LIKE_CAL: Mapping[str, Any] = {
    "optimizer": "sgd", "epochs": 30, "batch_size": 32, "class_specific": False, "beta": 1.0, "initial_scale": 0.3,
}  # fmt: skip
# What is tried besides a method's defaults, as far as it has these options.
# A context of its own for each class: where names say nothing, a context that classes share cannot tell them apart.
# A loose prior and a small initial scale: where names say nothing, the prior sits in the wrong place, and trainings of
# sixty steps are too short to average out much noise in thousands of numbers.
TRIED: Sequence[Mapping[str, Any]] = (
    {},
    {"class_specific": True},
    {"class_specific": True, "beta": 0.01, "initial_scale": 0.05},
)


@dataclass(frozen=True)
class Outcome:
    """One method's numbers in one test, one per seed."""

    method: str
    title: str
    accuracy: tuple[float, ...]
    selective: tuple[float, ...]  # Acc*: accuracy among the answers that were not "unsure"; those of seeds with any
    coverage: tuple[float, ...]

    def mean(self, what: str = "accuracy") -> tuple[float, float]:
        """Mean and standard error over seeds; NaN for what is not there."""
        found = getattr(self, what)
        if not found:
            return float("nan"), float("nan")
        mean, error = mean_and_error(list(found))
        return float(mean), float(error)


Outcomes = dict[str, dict[str, Outcome]]  # test → method → outcome


def compare(
    question: Question, backbone: Backbone, seeds: Sequence[int], say: Callable[[str], None] = print
) -> tuple[Outcomes, dict[int, FewShotClassifier]]:
    """The outcomes of a question, and the classifiers that `fit` made, by seed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: several threads would mostly wait for each other
    try:
        return _compare(question, backbone, seeds, say)
    finally:
        torch.set_num_threads(threads)


def _compare(
    question: Question, backbone: Backbone, seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[Outcomes, dict[int, FewShotClassifier]]:
    fitted = {seed: fit(question.scene(seed), seed) for seed in seeds}
    found: dict[str, dict[int, dict[str, Scores]]] = {}
    for method in question.methods:
        if method == FIT:
            found[method] = {seed: _fit_scores(question.scene(seed), fitted[seed]) for seed in seeds}
        else:
            chosen = train(question, method, backbone, seeds)
            found[method] = {seed: _scores(question.scene(seed), chosen[seed]) for seed in seeds}
        say(f"{question.title}: {title_of(method, fitted.values())}")
    return {
        test: {
            method: _outcome(method, title_of(method, fitted.values()), [own[seed][test] for seed in seeds])
            for method, own in found.items()
        }
        for test in question.tests
    }, fitted


def title_of(method: str, fitted: Iterable[FewShotClassifier] = ()) -> str:
    """ "Bayes-CAL"; of `fit`, with the method that it used: "fit --method logistic-regression"."""
    if method != FIT:
        return get_method(method).title
    used = dict.fromkeys(classifier.predictor_.method_name for classifier in fitted)
    return f"fit --method {', '.join(used)}"


def _outcome(method: str, title: str, scores: Sequence[Scores]) -> Outcome:
    numbers = lambda name: tuple(v for own in scores if (v := getattr(own, name)) is not None)  # noqa: E731
    return Outcome(method, title, numbers("accuracy"), numbers("selective_accuracy"), numbers("coverage"))


# --- methods ---------------------------------------------------------------------------------------------------------


def configs(method: str, backbone: Backbone) -> list[Config]:
    """The settings that a method tries, its defaults first."""
    space = get_method(method).space
    start = LIKE_CAL if "optimizer" in space else {}
    given = [{**start, **{name: value for name, value in tried.items() if name in space}} for tried in TRIED]
    found = [default_config(space, backbone.defaults, **own) for own in given]
    return [config for i, config in enumerate(found) if config not in found[:i]]


def train(question: Question, method: str, backbone: Backbone, seeds: Sequence[int]) -> dict[int, RunResult]:
    """The run that validates best, the first of equals, for every seed."""
    best: dict[int, RunResult] = {}
    for scene in question.scenes:
        mine = [seed for seed in seeds if question.scene(seed) is scene]
        runs = []
        for config, seed in product(configs(method, backbone), mine):
            train, val = (torch.from_numpy(rows) for rows in scene.split(seed))
            runs.append(Run(config, seed, train, {"val": val}))
        for result in train_runs(method, scene.problem, runs) if runs else []:
            if result.seed not in best or _validated(result) > _validated(best[result.seed]):
                best[result.seed] = result
    return best


def _validated(result: RunResult) -> float:
    return -1.0 if result.stopped else max(result.curves["val"])


def _scores(scene: Scene, run: RunResult) -> dict[str, Scores]:
    """With the threshold that the run's own validation images set."""

    def probs(rows: np.ndarray) -> torch.Tensor:
        features, _ = scene.features(rows)
        return run.predict(scene.problem, features, samples=POSTERIOR_SAMPLES, checkpoint="val").probs

    _, val = scene.split(run.seed)
    threshold = unsure_threshold(probs(val), scene.features(val)[1])
    return {name: _score(scene, rows, probs(rows), threshold) for name, rows in scene.tests.items()}


def _score(scene: Scene, rows: np.ndarray, probs: torch.Tensor, threshold: torch.Tensor) -> Scores:
    groups = scene.problem.environments[torch.from_numpy(rows)]
    names = scene.manifest.classes, scene.manifest.environments
    return score(probs, scene.features(rows)[1], groups, threshold, *names)[0]


# --- fit -------------------------------------------------------------------------------------------------------------


def fit(scene: Scene, seed: int) -> FewShotClassifier:
    """A fast method of `fit`, on the images that the others learn from and validate on."""
    train, val = scene.split(seed)
    rows, manifest = np.concatenate([train, val]), scene.manifest
    return FewShotClassifier(FAST, seed=seed).fit(
        [manifest.paths[i] for i in rows],
        [manifest.classes[manifest.class_ids[i]] for i in rows],
        [manifest.environments[manifest.environment_ids[i]] for i in rows],
        validation=[False] * len(train) + [True] * len(val),
    )


def _fit_scores(scene: Scene, classifier: FewShotClassifier) -> dict[str, Scores]:
    order = [classifier.classes_.tolist().index(name) for name in scene.manifest.classes]
    threshold = torch.tensor([classifier.threshold_], dtype=torch.float64)
    found = {}
    for name, rows in scene.tests.items():
        details = classifier.predictor_.details(scene.features(rows)[0])
        probs = torch.from_numpy(details.probabilities[:, order]).float()[None]
        found[name] = _score(scene, rows, probs, threshold)
    return found
