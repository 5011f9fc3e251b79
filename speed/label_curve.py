"""Accuracy in an environment not seen before, against how many of its images are labelled: suggested or at random.

    python -m speed.label_curve pacs=PACS produce=PRODUCE [--method NAME] [--seeds 10] [--out speed/results/label-curve]

For every environment and seed: 8 images per class of the other environments are learned from; two thirds of the
environment's images (of at most 1,200) are unlabelled, the last third tests. Ten images at a time are labelled, by
`bayescal.estimator.suggesting.suggest` or at random, and the method, with its defaults, learns anew: all seeds as one
stack. What is finished is kept in OUT.json, so that the same command continues; OUT.png is drawn from it.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal import FeatureBank, Problem, Run, get_method, load_backbone, read_manifest, train_runs
from bayescal.backbones import Backbone
from bayescal.estimator.artifact import AUTO
from bayescal.estimator.stacked_training import Case, train_stacked
from bayescal.estimator.suggesting import suggest, unknown
from bayescal.evaluation import metrics
from bayescal.evaluation.stacking import mixture
from bayescal.methods.hyperparameters import default_config
from bayescal.training.runs import StackResult
from bayescal.util.atomic import replacing, write_text

SHOTS, STEP, ROUNDS, MOST, SAMPLES = 8, 10, 10, 1200, 20
WAYS = ("random", "suggested")
OUT = Path(__file__).parent / "results" / "label-curve"


@dataclass(frozen=True)
class Data:
    """A data set as a problem, and the names of its environments."""

    problem: Problem
    names: tuple[str, ...]

    @classmethod
    def read(cls, folder: str, backbone: Backbone) -> "Data":
        manifest = read_manifest(folder)
        features = FeatureBank(backbone).encode(manifest.paths).features
        ids = manifest.class_ids, manifest.environment_ids
        problem = Problem.of(backbone, features, *ids, manifest.class_words, manifest.environment_words)
        return cls(problem, manifest.environments)


@dataclass
class Labelling:
    """One seed, labelled one way: images that are learned from, that may be labelled, and that test."""

    seed: int
    way: str
    rows: Tensor
    unlabelled: Tensor
    test: Tensor
    found: list[float]

    @classmethod
    def begin(cls, problem: Problem, environment: int, seed: int, way: str) -> "Labelling":
        shuffled = torch.randperm(len(problem.labels), generator=torch.Generator().manual_seed(seed))
        others = shuffled[problem.environments[shuffled] != environment]
        own = shuffled[problem.environments[shuffled] == environment][:MOST]
        first = [others[problem.labels[others] == label][:SHOTS] for label in range(len(problem.class_words))]
        return cls(seed, way, torch.cat(first), own[: 2 * len(own) // 3], own[2 * len(own) // 3 :], [])

    def label(self, features: Tensor, uncertainty: Tensor) -> None:
        """Ten more, given what the model does not know about those that are unlabelled."""
        chosen = torch.arange(STEP)  # the images are in random order
        if self.way == "suggested":
            picked = suggest(features[self.unlabelled], uncertainty, features[self.rows], STEP)
            chosen = torch.from_numpy(picked.images)
        self.rows = torch.cat([self.rows, self.unlabelled[chosen]])
        left = torch.ones(len(self.unlabelled), dtype=torch.bool)
        left[chosen] = False
        self.unlabelled = self.unlabelled[left]


Answer = tuple[Tensor, Tensor]  # probabilities (N, C), and what is not known of each image (N,)


def learn(problem: Problem, backbone: Backbone, method: str, wanted: Sequence[Labelling]) -> list[list[Answer]]:
    """What the models of all these say of their unlabelled images, and of those that test."""
    if method == AUTO:
        cases = [Case(own.rows, own.seed) for own in wanted]
        models = train_stacked(problem, backbone.defaults, cases, SAMPLES)
        parts = [([*model.members.values()], model.weights) for model in models]
    else:
        config = default_config(get_method(method).space, backbone.defaults)
        stack = StackResult.of(train_runs(method, problem, [Run(config, own.seed, own.rows) for own in wanted]))
        parts = [([run], torch.ones(1, dtype=torch.float64)) for run in (stack[r] for r in range(len(stack)))]
    return [
        [_answer(problem, members, weights, images) for images in (own.unlabelled, own.test)]
        for own, (members, weights) in zip(wanted, parts, strict=True)
    ]


def _answer(problem: Problem, members: Sequence[Any], weights: Tensor, images: Tensor) -> Answer:
    """As `StackedPredictor.posterior`, of one member or several."""
    said = [member.predict(problem, problem.features[images], samples=SAMPLES) for member in members]
    probs = torch.stack([own.probs[0] for own in said]).double()
    entropies = torch.stack([own.expected_entropy[0] for own in said]).double()
    share = weights.double()
    mixed = mixture(share, probs)
    about = SimpleNamespace(
        mutual_information=(share @ metrics.mutual_information(probs, entropies)).numpy(),
        disagreement=metrics.mutual_information(mixed, share @ metrics.predictive_entropy(probs)).numpy(),
        entropy=metrics.predictive_entropy(mixed).numpy(),
    )
    return mixed, unknown(about)


def curves(data: Data, backbone: Backbone, method: str, environment: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Accuracy after 0, 10, 20 … labels: seed → way → list."""
    problem = data.problem
    every = [Labelling.begin(problem, environment, seed, way) for seed in seeds for way in WAYS]
    for place in range(ROUNDS + 1):
        for own, (unlabelled, test) in zip(every, learn(problem, backbone, method, every), strict=True):
            own.found.append(round(float((test[0].argmax(1) == problem.labels[own.test]).float().mean()), 5))
            if place < ROUNDS:
                own.label(problem.features, unlabelled[1])
    return {str(seed): {own.way: own.found for own in every if own.seed == seed} for seed in seeds}


def summary(curves: dict[str, Any], name: str, seeds: int) -> list[str]:
    """Means over environments, and the difference with its standard error over environments × seeds."""
    pairs = np.array([[own[str(s)][way] for way in WAYS] for own in curves.values() for s in range(seeds)])
    mean, gap = 100 * pairs.mean(0), 100 * (pairs[:, 1] - pairs[:, 0])
    lines = [f"| {name} | " + " | ".join(str(STEP * i) for i in range(ROUNDS + 1)) + " |"]
    for way, values in zip(WAYS, mean, strict=True):
        lines.append(f"| {way} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    error = gap.std(0, ddof=1) / np.sqrt(len(gap))
    lines.append(
        "| difference | " + " | ".join(f"{g:+.1f} ± {e:.1f}" for g, e in zip(gap.mean(0), error, strict=True)) + " |"
    )
    return lines


def draw(results: dict[str, Any], seeds: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(4.8 * len(results), 3.8), layout="constrained", squeeze=False)
    for ax, (name, curves) in zip(axes[0], results.items(), strict=True):
        for way, colour in (("suggested", "#0072B2"), ("random", "#8a8a8a")):
            values = 100 * np.array([own[str(s)][way] for own in curves.values() for s in range(seeds)])
            mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
            x = STEP * np.arange(ROUNDS + 1)
            ax.plot(x, mean, color=colour, label=way, marker="o", markersize=3)
            ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
        ax.set(title=f"{name}, {len(curves)} environments × {seeds} seeds", xlabel="labelled images of the environment")
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("accuracy in that environment, %")
    axes[0][0].legend(frameon=False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=110, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--method", default="logistic-regression", help="one of `bayescal methods`, or auto")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    file = arguments.out.with_suffix(".json")
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    backbone = load_backbone("mini")
    for name, folder in (entry.split("=", 1) for entry in arguments.data):
        data, mine = Data.read(folder, backbone), results.setdefault(name, {})
        for number, environment in enumerate(data.names):
            done = mine.setdefault(environment, {})
            missing = [seed for seed in range(arguments.seeds) if str(seed) not in done]
            if missing:
                done |= curves(data, backbone, arguments.method, number, missing)
                write_text(file, json.dumps(results, indent=1) + "\n")
        print("\n".join(summary(mine, name, arguments.seeds)), flush=True)
    draw(results, arguments.seeds, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
