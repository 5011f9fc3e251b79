"""Every method on the same images: trained, chosen on validation images, and scored where it was never trained.

A method learns from half of the labelled images, tries the few settings below and keeps, for each seed, the one that
does best on the other half; nothing is chosen on a test. `fit` is what `bayescal fit` does when nothing is said: it
learns from all labelled images and judges by environments left out (docs/auto.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from bayescal.backbones.base import Backbone
from bayescal.demo.scenes import FIT, Question, Scene
from bayescal.estimator.auto import stacked_predictor
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.estimator.predictor import StackedPredictor
from bayescal.estimator.stacked_training import Case, train_stacked
from bayescal.evaluation.calibration import unsure_threshold
from bayescal.evaluation.scoring import Scores, score
from bayescal.evaluation.statistics import mean_and_error
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import Config, default_config
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import train_runs

POSTERIOR_SAMPLES = 20
# What is tried, as far as a method has these options: one context for all classes, and a context of its own for each.
# Where names say nothing, a context that classes share cannot tell them apart. (Bayes-CAL tries its default alone.)
TRIED: Sequence[Mapping[str, Any]] = ({"class_specific": False}, {"class_specific": True})


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
) -> tuple[Outcomes, dict[int, StackedPredictor]]:
    """The outcomes of a question, and the models that `fit` made, by seed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: several threads would mostly wait for each other
    try:
        return _compare(question, backbone, seeds, say)
    finally:
        torch.set_num_threads(threads)


def _compare(
    question: Question, backbone: Backbone, seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[Outcomes, dict[int, StackedPredictor]]:
    fitted = fit(question, backbone, seeds)
    found: dict[str, dict[int, dict[str, Scores]]] = {}
    for method in question.methods:
        if method == FIT:
            found[method] = {seed: _fit_scores(question.scene(seed), fitted[seed]) for seed in seeds}
        else:
            chosen = train(question, method, backbone, seeds)
            found[method] = {seed: _scores(question.scene(seed), chosen[seed]) for seed in seeds}
        say(f"{question.title}: {title_of(method)}")
    return {
        test: {
            method: _outcome(method, title_of(method), [own[seed][test] for seed in seeds])
            for method, own in found.items()
        }
        for test in question.tests
    }, fitted


def title_of(method: str) -> str:
    return "fit (default)" if method == FIT else get_method(method).title


def _outcome(method: str, title: str, scores: Sequence[Scores]) -> Outcome:
    numbers = lambda name: tuple(v for own in scores if (v := getattr(own, name)) is not None)  # noqa: E731
    return Outcome(method, title, numbers("accuracy"), numbers("selective_accuracy"), numbers("coverage"))


# --- methods ---------------------------------------------------------------------------------------------------------


def configs(method: str, backbone: Backbone) -> list[Config]:
    """The settings that a method tries."""
    space = get_method(method).space
    tried = ({},) if get_method(method).has_posterior else TRIED
    given = [{name: value for name, value in own.items() if name in space} for own in tried]
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


def fit(question: Question, backbone: Backbone, seeds: Sequence[int]) -> dict[int, StackedPredictor]:
    """What `fit` makes of all labelled images of each seed; the seeds of a scene are trained together."""
    fitted = {}
    for scene in question.scenes:
        mine = [seed for seed in seeds if question.scene(seed) is scene]
        if mine:
            fitted |= _fit_scene(scene, backbone, mine)
    return fitted


def _fit_scene(scene: Scene, backbone: Backbone, seeds: Sequence[int]) -> dict[int, StackedPredictor]:
    labelled = {seed: np.sort(np.concatenate(scene.split(seed))) for seed in seeds}
    rows = np.unique(np.concatenate(list(labelled.values())))  # what is tested on is not among them
    images = LabelledImages.from_manifest(scene.manifest.select(rows))
    problem = Problem.of(
        backbone, scene.problem.features[torch.from_numpy(rows)], images.class_ids, images.environment_ids,
        images.class_words, images.environment_words,
    )  # fmt: skip
    cases = [Case(torch.from_numpy(np.searchsorted(rows, labelled[seed])), seed) for seed in seeds]
    stacks = train_stacked(problem, backbone.defaults, cases, POSTERIOR_SAMPLES)
    return {
        seed: stacked_predictor(backbone, problem, images, stacked, POSTERIOR_SAMPLES)
        for seed, stacked in zip(seeds, stacks, strict=True)
    }


def _fit_scores(scene: Scene, model: StackedPredictor) -> dict[str, Scores]:
    order = [model.classes.index(name) for name in scene.manifest.classes]
    threshold = torch.tensor([model.threshold], dtype=torch.float64)
    found = {}
    for name, rows in scene.tests.items():
        probs = model.posterior(scene.features(rows)[0]).probs[:, order][None]
        found[name] = _score(scene, rows, probs, threshold)
    return found
