"""Accuracy in an environment not seen before, against how many of its images are labelled: suggested or at random.

    python -m speed.label_curve pacs=PACS produce=PRODUCE [--seeds 10] [--out speed/results/label-curve]

For every environment and seed: 8 images per class of the other environments are learned from; two thirds of the
environment's images (of at most 1,200) are unlabelled, the last third tests. Ten images at a time are labelled, by
`bayescal.estimator.suggesting.suggest` or at random, and logistic regression around zero-shot is learned anew. What is
finished is kept in OUT.json, so that the same command continues; OUT.png is drawn from it.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal import FeatureBank, load_backbone, read_manifest
from bayescal.backbones import Backbone
from bayescal.estimator.suggesting import suggest
from bayescal.evaluation.metrics import predictive_entropy
from bayescal.methods.adapters.logistic_regression import logistic_regression
from bayescal.util.atomic import replacing, write_text

SHOTS, STEP, ROUNDS, MOST = 8, 10, 10, 1200
STRENGTH = 10.0  # of logistic regression, its default
OUT = Path(__file__).parent / "results" / "label-curve"
Answer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Data:
    """A data set as features (N, D), labels (N,), environments (N,) and the text features of its classes (D, C)."""

    features: Tensor
    labels: Tensor
    environments: Tensor
    names: tuple[str, ...]
    text: Tensor

    @classmethod
    def read(cls, folder: str, backbone: Backbone) -> "Data":
        manifest = read_manifest(folder)
        encoded = FeatureBank(backbone).encode(manifest.paths)
        prompts = [backbone.tokenize(backbone.defaults.template.format(words)) for words in manifest.class_words]
        text = backbone.logit_scale * F.normalize(backbone.text.encode(prompts), dim=-1).T
        ids = torch.from_numpy(np.array(manifest.class_ids)), torch.from_numpy(np.array(manifest.environment_ids))
        return cls(encoded.features, *ids, manifest.environments, text)

    def learn(self, rows: Tensor) -> Answer:
        weight, bias = logistic_regression(self.features[rows], self.labels[rows], self.text, STRENGTH)
        return lambda features: (F.normalize(features, dim=-1) @ weight + bias).softmax(-1)


def curve(data: Data, environment: int, seed: int, suggested: bool) -> list[float]:
    """Accuracy after 0, 10, 20 … labels."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(data.labels), generator=generator)
    others = shuffled[data.environments[shuffled] != environment]
    own = shuffled[data.environments[shuffled] == environment][:MOST]
    rows = torch.cat([others[data.labels[others] == label][:SHOTS] for label in range(data.text.shape[1])])
    unlabelled, test = own[: 2 * len(own) // 3], own[2 * len(own) // 3 :]
    found = []
    for place in range(ROUNDS + 1):
        answer = data.learn(rows)
        found.append(float((answer(data.features[test]).argmax(1) == data.labels[test]).float().mean()))
        if place == ROUNDS:
            return found
        chosen = torch.arange(STEP)  # the images are in random order
        if suggested:
            uncertainty = predictive_entropy(answer(data.features[unlabelled]))
            picked = suggest(data.features[unlabelled], uncertainty, data.features[rows], STEP)
            chosen = torch.from_numpy(picked.images)
        rows = torch.cat([rows, unlabelled[chosen]])
        left = torch.ones(len(unlabelled), dtype=torch.bool)
        left[chosen] = False
        unlabelled = unlabelled[left]
    return found


def summary(curves: dict[str, Any], name: str, seeds: int) -> list[str]:
    """Means over environments, and the difference with its standard error over environments × seeds."""
    pairs = np.array(
        [[own[str(s)][way] for way in ("random", "suggested")] for own in curves.values() for s in range(seeds)]
    )
    mean, gap = 100 * pairs.mean(0), 100 * (pairs[:, 1] - pairs[:, 0])
    lines = [f"| {name} | " + " | ".join(str(STEP * i) for i in range(ROUNDS + 1)) + " |"]
    for way, values in zip(("random", "suggested"), mean, strict=True):
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
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    file = arguments.out.with_suffix(".json")
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    backbone = load_backbone("mini")
    for name, folder in (entry.split("=", 1) for entry in arguments.data):
        data, mine = Data.read(folder, backbone), results.setdefault(name, {})
        for number, environment in enumerate(data.names):
            for seed in range(arguments.seeds):
                done = mine.setdefault(environment, {})
                if str(seed) in done:
                    continue
                done[str(seed)] = {
                    way: [round(value, 5) for value in curve(data, number, seed, way == "suggested")]
                    for way in ("random", "suggested")
                }
                write_text(file, json.dumps(results, indent=1) + "\n")
        print("\n".join(summary(mine, name, arguments.seeds)), flush=True)
    draw(results, arguments.seeds, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
