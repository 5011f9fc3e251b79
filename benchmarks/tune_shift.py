"""Training defaults under correlation shift, on validation images alone: CCD and ColoredMNIST.

    python -m benchmarks.tune_shift CCD COLORED_MNIST [--device cuda] [--pack FOLDER]

The protocol itself, with the validation part of the test distribution in the place of the test part: the images that
experiments report on are not among the images here. For every setting of (start of the context, learning rate, β,
prior scale), random draws of λ × 3 seeds are trained; the draw is chosen by 16 images per class of that part, at the
last checkpoint, and the setting is judged on the rest of it. Settings of one method are one stack.

With `--pack` the data are only written as bundles, to be given in place of the folders on a machine without images.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import torch

from bayescal.data.datasets import open_dataset
from bayescal.protocol.arena import Arena, open_arena
from bayescal.protocol.bundle import SUFFIX, load_bundle, save_bundle
from bayescal.protocol.entries import get_entry
from bayescal.protocol.runner import Planned
from bayescal.protocol.study import Drawn
from bayescal.space import Config, draw_config
from bayescal.stacks import RunResult, train_runs

SEEDS = (1, 2, 3)
DRAWS = 10
IMAGES = 2000  # of the validation part: enough to tell settings apart
STARTS = (("a photo of a", 4), ("", 4), ("", 16))
RATES = (0.002, 0.01, 0.02)
GRID = {
    "coop": [{}],
    "cal": [{}],
    "bayes-cal": [
        *({"beta": b, "prior_scale": p} for b in (0.01, 0.1, 1.0) for p in (0.05, 0.2)),
        *({"beta": 1.0, "prior_scale": 0.2, "initial_scale": s} for s in (0.1, 1.0)),
        {"beta": 1.0, "prior_scale": 0.2, "train_samples": 4},
    ],
}


def validation_arena(name: str, path: Path, backbone: str = "mini") -> Arena:
    """The data set without its test part: the validation part takes its place."""
    from bayescal import load_backbone

    dataset, manifest = open_dataset(name, path)
    val = np.flatnonzero(manifest.splits == "val")
    keep = np.concatenate([np.flatnonzero(manifest.splits == "train"), val[:: max(1, len(val) // IMAGES)]])
    manifest = manifest.select(np.sort(keep))
    splits = np.where(manifest.splits == "val", "test", manifest.splits)
    object.__setattr__(manifest, "splits", splits)
    return open_arena(dataset, manifest, load_backbone(backbone), SEEDS)


def settings(method: str) -> list[Config]:
    return [
        {"context_init": words, "n_context": n, "learning_rate": rate, **more}
        for (words, n), rate, more in itertools.product(STARTS, RATES, GRID[method])
    ]


def tune(arena: Arena, method: str) -> list[dict]:
    """Accuracy on the judged part for each setting, mean over seeds; chosen draw by the other images."""
    entry, (fold,) = get_entry(method), arena.folds
    space = entry.search_space(arena.dataset)
    planned, owner = [], []
    for i, setting in enumerate(settings(method)):
        for trial, seed in itertools.product(range(DRAWS), SEEDS):
            config = draw_config(space, arena.facts.defaults, trial, **setting)
            planned.append(Planned(arena, entry, fold, seed, Drawn(trial, config)))
            owner.append((i, seed))
    results = train_runs(method, arena.problem, [p.run() for p in planned], progress=f"{arena.dataset.name} {method}")
    rows = []
    for i, setting in enumerate(settings(method)):
        groups = [[r for r, o in zip(results, owner, strict=True) if o == (i, seed)] for seed in SEEDS]
        chosen = [max(same, key=lambda r: r.curves["test_val"][-1]) for same in groups]
        last = lambda runs, name: [r.curves[name][-1] for r in runs]  # noqa: E731
        everything = [r for same in groups for r in same]
        rows.append(
            {
                "setting": setting,
                "chosen": float(np.mean(last(chosen, "test_rest"))),
                "all draws": float(np.mean(last(everything, "test_rest"))),
                "best draw": float(np.mean([max(last(same, "test_rest")) for same in groups])),
                "training-domain val": float(np.mean(last(everything, "val"))),
                "lambda_irm": _medians(chosen),
            }
        )
    return rows


def _medians(chosen: list[RunResult]) -> float | None:
    return float(np.median([r.config["lambda_irm"] for r in chosen])) if "lambda_irm" in chosen[0].config else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ccd", type=Path)
    parser.add_argument("colored_mnist", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "defaults-shift-mini.json")
    arguments = parser.parse_args()
    table: dict = {"command": "python -m benchmarks.tune_shift CCD COLORED_MNIST", "torch": torch.__version__}
    for name, path in (("ccd", arguments.ccd), ("colored-mnist", arguments.colored_mnist)):
        packed = path.suffix == SUFFIX
        arena = load_bundle(path, arguments.device) if packed else validation_arena(name, path)
        if arguments.pack:
            save_bundle(arena, arguments.pack / f"{name}-validation{SUFFIX}")
            continue
        for method in GRID:
            table.setdefault(name, {})[method] = rows = tune(arena, method)
            print(f"{name} {method}")
            for row in sorted(rows, key=lambda row: -row["chosen"]):
                numbers = {k: f"{100 * v:.1f}" for k, v in row.items() if isinstance(v, float) and k != "lambda_irm"}
                print(f"  {numbers}  λ2 {row['lambda_irm']}  {row['setting']}", flush=True)
    if not arguments.pack:
        arguments.output.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
