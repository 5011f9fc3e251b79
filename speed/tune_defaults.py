"""Choose a backbone's training defaults on several data sets at once, by environments that are left out of training.

    python -m speed.tune_defaults PACS PRODUCE DIGITS WASTE CCD COLORED_MNIST [--seeds 1 2] [--methods coop erm]

Each argument is a folder ENVIRONMENT/CLASS/image or a manifest. For every held-out environment and seed, 16 + 16 images
per class of the others are drawn, as an experiment would; of these, every environment is left out once, the method
learns from the rest as `fit` does (16 images per class; the other 16 choose the epoch and Tip-Adapter's two numbers),
and is tested on what was left out. The held-out environment itself is never looked at. A data set with one environment
beside the held-out one is tested on half of its validation images, and chooses by the other half.

A setting's score is the mean negative log-likelihood over all of that; across data sets, the mean of what it loses
against the best setting on each, and the setting that loses least is chosen; for Bayes-CAL, of the settings that are on
no data set more than two points less accurate than CoOp with its default. What a choice is worth on data that had no
part in it is shown in rotation: for each data set, the setting that the others choose.
"""

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones import Backbone, load_backbone
from bayescal.data import Manifest, few_shot_split
from bayescal.data.datasets import open_dataset
from bayescal.data.datasets.base import Fold
from bayescal.data.splits import Split
from bayescal.estimator import stacked_training as estimator
from bayescal.estimator.members import MIXTURES
from bayescal.estimator.stacked_training import train_stacked
from bayescal.evaluation.metrics import accuracy, nll
from bayescal.evaluation.stacking import mixture
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import Config, default_config
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import train_runs

SHOTS = 16
FULL = 4096  # more than there are training images: every step sees all of them
FIXED = {"alpha_steps": [0], "beta_steps": [0]}  # Tip-Adapter's numbers as they are set, without a search
LIKE_COOP = {"optimizer": ["sgd"], "batch_size": [32]}
ADAM = {"optimizer": ["adam"], "batch_size": [FULL], "initial_scale": [0.1]}
MAY_LOSE = 0.02  # accuracy on any data set, against the default of the method it is to be as good as
AS_GOOD_AS = {"bayes-cal": "coop"}
SAMPLES = 20  # of a posterior, as `fit` answers
RESULTS = Path(__file__).parent / "results"


def product(**options: Sequence[Any]) -> list[Config]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


TEMPLATES = [
    "a photo of a {}.",
    "a {}.",
    "{}",
    "a photo of a {}.|a {}.|{}",
    "a photo of a {}.|a drawing of a {}.|a {}.",
]
SEARCHED = [  # on the validation images
    *product(alpha=[1.0], beta=[5.0], alpha_max=[20.0], beta_max=[20.0]),  # as published
    *product(alpha=[1.0, 3.0], beta=[2.0], alpha_max=[5.0, 20.0], beta_max=[5.0, 20.0]),
]
SETTINGS: dict[str, list[Config]] = {
    "clip": product(template=TEMPLATES),
    "coop": [
        *product(learning_rate=[0.02, 0.1, 0.4], class_specific=[False, True], epochs=[30, 100]),
        *product(learning_rate=[0.002, 0.01, 0.05], class_specific=[False], epochs=[30]),
    ],
    "cal": product(learning_rate=[0.02, 0.1], class_specific=[False, True], epochs=[30, 100]),
    "bayes-cal": [
        *product(beta=[1.0, 0.3, 0.1, 0.03], class_specific=[True, False], **ADAM, learning_rate=[0.02], epochs=[200]),
        *product(beta=[0.3, 0.1], prior_scale=[0.5], **ADAM, learning_rate=[0.05], epochs=[200]),
        *product(beta=[1.0, 0.3, 0.1], **ADAM, learning_rate=[0.005, 0.01], epochs=[30, 60]),
        *product(beta=[0.1, 0.03], prior_scale=[0.5], **ADAM, learning_rate=[0.01], epochs=[60]),
        # As CoOp and CAL are trained, from a narrower start.
        *product(beta=[1.0, 0.3, 0.1, 0.03], initial_scale=[0.05, 0.1], **LIKE_COOP, learning_rate=[0.02], epochs=[30]),
        *product(beta=[0.3, 0.1], initial_scale=[0.05], **LIKE_COOP, learning_rate=[0.05], epochs=[30]),
        *product(beta=[0.3, 0.1], initial_scale=[0.05], **LIKE_COOP, learning_rate=[0.02], epochs=[60]),
    ],
    "bayes-cal-mixed": [{}],
    "clip-adapter": [
        *product(learning_rate=[3e-4, 1e-3], ratio=[0.2, 0.5]),  # 30 epochs of 32 images
        *product(learning_rate=[3e-4, 1e-3], ratio=[0.2, 0.5], epochs=[150], batch_size=[FULL]),
    ],
    "tip-adapter": [*SEARCHED, *product(alpha=[1.0, 3.0, 10.0], beta=[2.0, 5.5, 10.0], **FIXED)],
    "tip-adapter-f": [*SEARCHED, *product(alpha=[1.0, 3.0], beta=[2.0, 5.5], **FIXED)],
    "erm": product(learning_rate=[3e-4, 1e-3], weight_decay=[0.0, 1e-2, 0.1], epochs=[15, 50]),
    "irm-games": product(epochs=[100, 400, 800], learning_rate=[1e-4, 3e-4, 1e-3]),
    "logistic-regression": product(strength=[1.0, 10.0, 100.0], around=["text", "zero"]),
}


@dataclass(frozen=True)
class Case:
    """One training without an environment, and the images it is tested on; all are rows of the problem."""

    seed: int
    train: Tensor
    val: Tensor
    left_out: Tensor


def open_cases(path: str, backbone: Backbone, seeds: Sequence[int], cache: Path | None) -> tuple[Problem, list[Case]]:
    """Draw the labelled images of every fold and seed, encode them, and leave out one environment after the other."""
    dataset, manifest = open_dataset(path)
    contents = ContentIndex.of(manifest.paths, workers=1)
    hashes = contents.hexes()
    drawn = [(seed, _draw(manifest, hashes, fold, seed)) for fold in dataset.folds(manifest) for seed in seeds]
    rows = np.unique(np.concatenate([np.concatenate([split.train, split.val]) for _, split in drawn]))
    encoded = FeatureBank(backbone, cache or "auto").encode([manifest.paths[row] for row in rows], progress=True)
    environments = manifest.environment_ids[rows]
    problem = Problem.of(
        backbone,
        encoded.features.to(backbone.device),
        manifest.class_ids[rows],
        environments,
        manifest.class_words,
        manifest.environment_words,
    )
    cases = []
    for seed, split in drawn:
        train, val = np.searchsorted(rows, split.train), np.searchsorted(rows, split.val)
        seen = np.unique(environments[train])
        if len(seen) == 1:
            parts = (train, val[::2], val[1::2])  # sorted by class, so both halves have all of them
            cases.append(Case(seed, *(torch.from_numpy(part).to(backbone.device) for part in parts)))
            continue
        for out in seen:
            parts = [part[environments[part] != out] for part in (train, val)]
            left = np.concatenate([part[environments[part] == out] for part in (train, val)])
            cases.append(Case(seed, *(torch.from_numpy(part).to(backbone.device) for part in (*parts, left))))
    return problem, cases


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """At most so many, evenly from the list."""
    chosen = np.unique(np.linspace(0, len(cases) - 1, count).round().astype(int))
    return [cases[i] for i in chosen]


def _draw(manifest: Manifest, hashes: Sequence[str | None], fold: Fold, seed: int) -> Split:
    return few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=fold.train_environments,
        shots=SHOTS,
        val_shots=SHOTS,
        seed=seed,
        hashes=hashes,
        forbidden={hashes[row] for row in np.flatnonzero(fold.test)} - {None},
        pool=fold.pool,
        class_names=manifest.class_words,
        environment_names=manifest.environment_words,
    )


def tune(method: str, problem: Problem, cases: Sequence[Case], backbone: Backbone) -> list[dict[str, float]]:
    """Mean negative log-likelihood and accuracy of each setting on what was left out."""
    if method in MIXTURES:
        return [mixed(method, problem, cases, backbone)]
    space = get_method(method).space
    configs = [default_config(space, backbone.defaults, **options) for options in SETTINGS[method]]
    runs = [Run(config, case.seed, case.train, {"val": case.val}) for config in configs for case in cases]
    results = train_runs(method, problem, runs, progress=method)
    scores = []
    for i, config in enumerate(configs):
        found = [
            score(result, problem, case)
            for case, result in zip(cases, results[i * len(cases) : (i + 1) * len(cases)], strict=True)
        ]
        means = dict(zip(("nll", "accuracy"), np.mean(found, axis=0).tolist(), strict=True))
        scores.append({**means, "default": config == default_config(space, backbone.defaults)})
    return scores


def mixed(name: str, problem: Problem, cases: Sequence[Case], backbone: Backbone) -> dict[str, float]:
    """A mixture that learns from the same images; its weights come from environments left out among those."""
    learned = [estimator.Case(case.train, case.seed) for case in cases]
    stacks = train_stacked(problem, backbone.defaults, learned, samples=SAMPLES, progress=name, members=MIXTURES[name])
    found = []
    for case, stacked in zip(cases, stacks, strict=True):
        asked, truth = problem.features[case.left_out], problem.labels[case.left_out]
        probs = torch.stack([one.predict(problem, asked, samples=SAMPLES).probs[0] for one in stacked.members.values()])
        answers = mixture(stacked.weights, probs)[None]
        found.append((float(nll(answers, truth)), float(accuracy(answers, truth))))
    return dict(zip(("nll", "accuracy"), np.mean(found, axis=0).tolist(), strict=True)) | {"default": True}


def score(result: RunResult, problem: Problem, case: Case) -> tuple[float, float]:
    """Negative log-likelihood and accuracy on what was left out.

    Without `fit`'s temperature: where all of a few validation images are right, it says more of them than of a setting.
    """
    probs = result.predict(problem, problem.features[case.left_out], samples=SAMPLES, checkpoint="val").probs
    truth = problem.labels[case.left_out]
    return float(nll(probs, truth)), float(accuracy(probs, truth))


Scores = dict[str, list[dict[str, float]]]  # by data set: one per setting


def choose(by_set: Scores, floor: dict[str, float]) -> tuple[int, list[float]]:
    """The setting that loses least over these data sets, of those above the accuracies of `floor`; what each loses."""
    each = [np.array([score["nll"] for score in scores]) for scores in by_set.values()]
    lost = np.mean([nlls - nlls.min() for nlls in each], axis=0)
    low = [[score["accuracy"] < floor.get(name, 0.0) for score in scores] for name, scores in by_set.items()]
    allowed = ~np.any(low, axis=0)
    return int(np.where(allowed | ~allowed.any(), lost, np.inf).argmin()), lost.tolist()


def floor_of(table: dict[str, Any], method: str) -> dict[str, float]:
    """The least accuracy on every data set, from what was found of the method that this one is to be as good as."""
    rows = table.get(AS_GOOD_AS.get(method, ""), {}).get("settings", ())
    default = next((row for row in rows if row["default"]), {})
    return {name: own["accuracy"] - MAY_LOSE for name, own in default.items() if isinstance(own, dict) and "nll" in own}


def summary(method: str, by_set: Scores, floor: dict[str, float]) -> dict[str, Any]:
    """Settings with their scores on each data set and their regret over all, the best first; and the rotation."""
    chosen, regrets = choose(by_set, floor)
    rows = [
        {"options": options, "default": bool(next(iter(by_set.values()))[i]["default"]), "regret": regrets[i]}
        | {name: {"nll": scores[i]["nll"], "accuracy": scores[i]["accuracy"]} for name, scores in by_set.items()}
        for i, options in enumerate(SETTINGS[method])
    ]
    rotation = {}
    for name in by_set if len(by_set) > 1 else ():
        other, _ = choose({other: scores for other, scores in by_set.items() if other != name}, floor)
        rotation[name] = {"options": SETTINGS[method][other], **rows[other][name]}
    return {
        "settings": sorted(rows, key=lambda row: row["regret"]),
        "chosen": SETTINGS[method][chosen],
        "chosen by the other sets": rotation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--methods", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument(
        "--cases", type=int, help="of each data set, at most, spread over held-out environments and seeds"
    )
    parser.add_argument("--cache", type=Path, help="of features; by default the usual one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    backbone = load_backbone(arguments.backbone, arguments.device)
    opened = {Path(path).name: open_cases(path, backbone, arguments.seeds, arguments.cache) for path in arguments.data}
    if arguments.cases:
        opened = {name: (problem, spread(cases, arguments.cases)) for name, (problem, cases) in opened.items()}
    output = arguments.output or RESULTS / f"defaults-{backbone.label.replace(' ', '')}.json"
    about = {
        "command": f"python -m speed.tune_defaults {' '.join(opened)} --backbone {arguments.backbone}",
        "fingerprint": backbone.fingerprint,
        "seeds": arguments.seeds,
        "cases": {name: len(cases) for name, (_, cases) in opened.items()},
        "torch": torch.__version__,
    }
    table = json.loads(output.read_text()) if output.exists() else {}
    for method in arguments.methods:
        started = time.perf_counter()
        found = {name: tune(method, problem, cases, backbone) for name, (problem, cases) in opened.items()}
        table = {**table, **about, method: summary(method, found, floor_of(table, method))}
        print(f"{method}: {time.perf_counter() - started:.0f} s")
        for row in table[method]["settings"]:
            each = "  ".join(f"{name} {row[name]['nll']:.3f} / {100 * row[name]['accuracy']:.1f}" for name in found)
            print(f"  regret {row['regret']:.3f}  {each}  {row['options']}{' (default)' * row['default']}", flush=True)
        for name, row in table[method]["chosen by the other sets"].items():
            print(f"  on {name}, by the others: {row['nll']:.3f} / {100 * row['accuracy']:.1f}  {row['options']}")
        output.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
