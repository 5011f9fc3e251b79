"""Find a backbone's training defaults on validation images of PACS; the held-out environment is never looked at.

    python -m benchmarks.tune_defaults PACS [--backbone mini] [--device cuda]

PACS is its folder, or a file made by `bayescal data pack pacs`.

For each held-out environment and seed: 16 shots per class from the other three, and all remaining images of those three
as validation set (a larger one than the protocol's, so that settings can be told apart). Printed and written to
benchmarks/results/: mean validation accuracy and cross-entropy of each setting, at the last epoch.
"""

import argparse
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bayescal.data import few_shot_split
from bayescal.experiments.sources import Sources
from bayescal.methods import get_method
from bayescal.methods.base import predict
from bayescal.metrics import accuracy, mutual_information, nll
from bayescal.protocol.arena import Arena
from bayescal.space import default_config
from bayescal.stacks import Run, train_runs

SHOTS = 16


def product(**options: Sequence) -> list[dict]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


START = [
    {"context_init": "a photo of a", "n_context": 4},
    {"context_init": "", "n_context": 4},
    {"context_init": "", "n_context": 16},
]
STAGES = {
    "coop": [{**start, **rate} for start in START for rate in product(learning_rate=[0.002, 0.01, 0.02, 0.05, 0.1])],
    "bayes-cal": product(
        beta=[0.001, 0.01, 0.1, 1.0], prior_scale=[0.02, 0.05, 0.1, 0.2, 0.5], initial_scale=[0.1, 0.3, 1.0]
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pacs", type=Path)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--stages", nargs="+", default=list(STAGES))
    arguments = parser.parse_args()
    arena = Sources({"pacs": arguments.pacs}, arguments.backbone, arguments.seeds, arguments.device).arena("pacs")
    table = {}
    for name in arguments.stages:
        started = time.perf_counter()
        table[name] = tune(name, STAGES[name], arena, arguments.seeds)
        print(f"{name}: {time.perf_counter() - started:.0f} s")
        for row in sorted(table[name], key=lambda row: -row["accuracy"]):
            doubt = f"mutual information {row['mutual_information']:.4f}"
            print(f"  {100 * row['accuracy']:.2f} %  cross-entropy {row['nll']:.3f}  {doubt}  {row['options']}")
    output = arguments.output or Path(__file__).parent / "results" / f"defaults-{arguments.backbone.split(':')[0]}.json"
    command = f"python -m benchmarks.tune_defaults PACS --backbone {arguments.backbone}"
    output.write_text(json.dumps({"command": command, "torch": torch.__version__, **table}, indent=1))


def tune(name: str, settings: list[dict], arena: Arena, seeds: Sequence[int]) -> list[dict]:
    """Mean validation accuracy and cross-entropy (20 posterior draws) of each setting."""
    space, problem, defaults, device = get_method(name).space, arena.problem, arena.facts.defaults, arena.device
    hashes = arena.hashes  # of PACS every image has features, so its rows are the manifest's
    labels, environments = problem.labels.cpu().numpy(), problem.environments.cpu().numpy()
    runs, owner = [], []
    for i, options in enumerate(settings):
        for held_out, seed in itertools.product(range(len(problem.environment_words)), seeds):
            seen = [e for e in range(len(problem.environment_words)) if e != held_out]
            split = few_shot_split(
                labels, environments, train_environments=seen, shots=SHOTS, val_shots=0, seed=seed, hashes=hashes,
                class_names=problem.class_words, environment_names=problem.environment_words,
            )  # fmt: skip
            rest = np.isin(environments, seen)
            rest[split.train] = False
            val = torch.from_numpy(np.flatnonzero(rest)[::4]).to(device)  # every fourth: ~1,700 images
            config = default_config(space, defaults, **options)
            runs.append(Run(config, seed, torch.from_numpy(split.train).to(device), {"val": val}))
            owner.append(i)
    scores = defaultdict(list)
    for i, run, result in zip(owner, runs, train_runs(name, problem, runs, progress=name), strict=True):
        rows = run.judged["val"]
        predictive = predict(result.bind(problem), result.params, problem.features[rows], draws=20)
        probs, truth = predictive.probs, problem.labels[rows]
        doubt = mutual_information(probs, predictive.expected_entropy).mean()
        scores[i].append((float(accuracy(probs, truth)), float(nll(probs, truth)), float(doubt)))
    keys = ("accuracy", "nll", "mutual_information")
    return [{"options": o, **dict(zip(keys, np.mean(scores[i], axis=0), strict=True))} for i, o in enumerate(settings)]


if __name__ == "__main__":
    main()
