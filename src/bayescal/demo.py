"""`bayescal demo`: a shift that breaks a classifier, on data and weights that come with the package.

ColoredDigits follows the ColoredMNIST rule: a digit is "less than five" or "greater than four", a quarter of the labels
are wrong, and the colour agrees with the label in 80–90 % of the training images but in 10 % of the test images.
Every method learns from the same 16 images per class. Protocol: 20 random draws × 3 seeds, trained as stacks, chosen by
test-domain validation at the last checkpoint (images of the reversed environment that are not in its test set).
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayescal import metrics
from bayescal.artifact import check_output
from bayescal.backbones import Backbone, load_backbone
from bayescal.classifier import KEEP
from bayescal.data import Manifest, colored_digits_parts, few_shot_split, make_colored_digits, read_image
from bayescal.data.colored_digits import TRAIN_ENVIRONMENTS
from bayescal.errors import DataError
from bayescal.features import FeatureBank
from bayescal.methods import get_method
from bayescal.plots import ImageRow, demo_figure, save_figure
from bayescal.predictor import Predictor, environment_prototypes
from bayescal.search import best_per_seed, draw_configs, last
from bayescal.space import Space, choice, log10_uniform, number, setting
from bayescal.stacks import Problem, Run, RunResult, train_runs

if TYPE_CHECKING:
    from rich.console import Console

METHODS = ("clip", "coop", "cal", "bayes-cal")
SHOTS = 16
DRAWS = 20
# The paper's search for ColoredMNIST (λ1, λ2, λ3, class token position, class-specific context), with its 16 random
# context vectors.
SPACE: Space = {
    "lambda_env": number(0.1, log10_uniform(-3, 0)),
    "lambda_irm": number(1.0, log10_uniform(-1, 1)),
    "lambda_orth": number(0.1, log10_uniform(-3, 0)),
    "position": setting("end", choice("end", "middle")),
    "class_specific": setting(False, choice(True, False)),
    "n_context": setting(16),
    "context_init": setting(""),
}
WRITTEN = ("demo.png", "results.json", "model", "colored-digits")


@dataclass(frozen=True)
class Score:
    """One method's numbers over seeds, in one environment: mean and standard error of each."""

    accuracy: tuple[float, float]
    selective: tuple[float, float]  # Acc*: accuracy among the answers that were not "unsure"
    coverage: tuple[float, float]
    ece: tuple[float, float]


@dataclass(frozen=True)
class Demo:
    """Everything the demo works on: images, features, and which of them are for what."""

    backbone: Backbone
    manifest: Manifest
    problem: Problem
    seen: Tensor  # new digits, coloured as in training
    unseen_val: Tensor  # reversed colours, for choosing hyper-parameters
    unseen: Tensor  # reversed colours, for reporting


def run_demo(
    output: Path,
    *,
    trials: int = 20,
    seeds: Sequence[int] = (1, 2, 3),
    force: bool = False,
    console: "Console | None" = None,
) -> None:
    """Make the data, train the methods, print the table, and leave a picture and a model in `output`."""
    from rich.console import Console

    console = console or Console()
    started = time.perf_counter()
    _check_place(output, force)
    demo = prepare(output / "colored-digits")
    chosen: dict[str, list[RunResult]] = {}
    for name in METHODS:
        results = search(demo, name, trials, seeds)
        # Nothing of the test set is read here: only validation images of the reversed environment.
        chosen[name] = best_per_seed(results, last("unseen_val"))
        console.print(f"{get_method(name).title}: {len(results)} runs trained", style="dim")
    scores = {name: evaluate(demo, runs) for name, runs in chosen.items()}
    console.print(table(scores, len(seeds)))
    console.print(verdict(scores))
    save_figure(picture(demo, chosen), output / "demo.png")
    model = save_model(demo, chosen["bayes-cal"], output / "model", force)
    _write_results(output / "results.json", scores, chosen)
    example = Path(demo.manifest.paths[int(demo.unseen[0])]).parent
    console.print(
        f"\nPicture: {output / 'demo.png'}   ({time.perf_counter() - started:.0f} s in all)\n"
        f"Predict with the Bayes-CAL model just trained:\n"
    )
    console.print(f"  bayescal predict {model} {_short(example)}", soft_wrap=True, highlight=False)


def prepare(folder: Path) -> Demo:
    """Draw the digits and encode them, once: both are kept for the next time."""
    backbone = load_backbone("mini")
    manifest = make_colored_digits(folder)
    encoded = FeatureBank(backbone).encode(manifest.paths, progress=True)
    parts = colored_digits_parts(manifest)
    problem = Problem.of(
        backbone,
        encoded.features,
        manifest.class_ids,
        manifest.environment_ids,
        manifest.class_words,
        manifest.environment_words,
    )
    rows = (torch.tensor(part) for part in (parts.seen_test, parts.unseen_val, parts.unseen_test))
    return Demo(backbone, manifest, problem, *rows)


def search(demo: Demo, method: str, trials: int, seeds: Sequence[int]) -> list[RunResult]:
    """Train a method's draws × seeds. Draws that a method's space makes equal are trained once."""
    space = {name: SPACE.get(name, param) for name, param in get_method(method).space.items()}
    configs = draw_configs(space, demo.backbone.defaults, trials)
    runs = [run for config in configs for run in _runs(demo, config, seeds)]
    return train_runs(method, demo.problem, runs, progress=f"training {get_method(method).title}")


def _runs(demo: Demo, config: dict, seeds: Sequence[int]) -> list[Run]:
    manifest = demo.manifest
    pool = colored_digits_parts(manifest).pool
    runs = []
    for seed in seeds:
        split = few_shot_split(
            manifest.class_ids,
            manifest.environment_ids,
            train_environments=[manifest.environments.index(name) for name in TRAIN_ENVIRONMENTS],
            shots=SHOTS,
            val_shots=SHOTS,
            seed=seed,
            pool=np.isin(np.arange(len(manifest)), pool),
            class_names=manifest.classes,
            environment_names=manifest.environments,
        )
        judged = {"val": torch.from_numpy(split.val), "seen": demo.seen, "unseen": demo.unseen}
        runs.append(Run(config, seed, torch.from_numpy(split.train), {**judged, "unseen_val": demo.unseen_val}))
    return runs


def evaluate(demo: Demo, runs: Sequence[RunResult]) -> dict[str, Score]:
    """Scores of the chosen runs (one per seed) in the seen and the unseen environment."""
    per_run: dict[str, list[tuple[float, ...]]] = {"seen": [], "unseen": []}
    for run in runs:
        val = _runs(demo, run.config, [run.seed])[0].judged["val"]
        sets = {"val": val, "seen": demo.seen, "unseen": demo.unseen}
        probs = {n: run.predict(demo.problem, demo.problem.features[i], draws=DRAWS).probs for n, i in sets.items()}
        labels = {name: demo.problem.labels[rows] for name, rows in sets.items()}
        threshold = metrics.unsure_threshold(probs["val"], labels["val"], KEEP)
        for name, rows in per_run.items():
            p, y = probs[name], labels[name]
            selective = metrics.selective_accuracy(p, y, threshold)
            rows.append(
                tuple(map(float, (metrics.accuracy(p, y), selective.accuracy, selective.coverage, metrics.ece(p, y))))
            )
    scores = {}
    for name, rows in per_run.items():
        mean, error = metrics.mean_and_standard_error(torch.tensor(rows, dtype=torch.float64), dim=0)
        scores[name] = Score(*zip(mean.tolist(), error.tolist(), strict=True))
    return scores


def table(scores: dict[str, dict[str, Score]], n_seeds: int):
    """The result as a rich table: percent, mean ± standard error over seeds."""
    from rich.table import Table

    out = Table(
        title=f"ColoredDigits, {SHOTS} images per class: %, mean ± standard error over {n_seeds} seeds",
        caption="Acc*: accuracy of the answers that were not “unsure”; coverage: their share; ECE: calibration error",
        title_justify="left",
        caption_justify="left",
    )
    out.add_column("method", no_wrap=True)
    out.add_column("colours", no_wrap=True)
    for column in ("accuracy", "Acc*", "coverage", "ECE"):
        out.add_column(column, justify="right", no_wrap=True)
    for name, by_place in scores.items():
        for place, words in (("seen", "as trained"), ("unseen", "reversed")):
            score = by_place[place]
            numbers = (score.accuracy, score.selective, score.coverage, score.ece)
            title = get_method(name).title if place == "seen" else ""
            out.add_row(title, words, *map(_percent, numbers), end_section=place == "unseen")
    return out


def _percent(pair: tuple[float, float]) -> str:
    mean, error = pair
    if np.isnan(mean):
        return "–"
    return f"{100 * mean:.1f}" if np.isnan(error) else f"{100 * mean:.1f}±{100 * error:.1f}"


def verdict(scores: dict[str, dict[str, Score]]) -> str:
    """One sentence on what the table means, worded by what it shows."""
    accuracy = {name: {place: 100 * score.accuracy[0] for place, score in s.items()} for name, s in scores.items()}
    coop, ours = accuracy["coop"], accuracy["bayes-cal"]
    spread = 100 * np.hypot(scores["coop"]["unseen"].accuracy[1], scores["bayes-cal"]["unseen"].accuracy[1])
    start = (
        f"CoOp reads the colour: {coop['seen']:.0f} % where colours are as in training, {coop['unseen']:.0f} % where "
        "they are reversed, far below a coin flip (50 %)"
    )
    gain = ours["unseen"] - coop["unseen"]
    if gain > spread:
        return (
            f"{start}. Bayes-CAL falls from {ours['seen']:.0f} % only to {ours['unseen']:.0f} %: it has mostly let go "
            "of the colour that would mislead it, though 32 images with a quarter of the labels wrong do not teach it "
            "the digits."
        )
    return (
        f"{start}; Bayes-CAL, {ours['unseen']:.0f} % there ({gain:+.0f} ± {spread:.0f} points), did not clearly hold "
        "up better in this run."
    )


def picture(demo: Demo, chosen: dict[str, list[RunResult]]):
    """Sample images of each environment, and accuracy against epoch of the chosen runs."""
    rows = []
    for name, environment in (
        ("training: colour agrees in 80–90 %", None),
        ("test: colour agrees in 10 %", "reversed"),
    ):
        wanted = demo.unseen if environment else demo.seen
        labels = demo.problem.labels[wanted]
        picks = [int(wanted[labels == c][i]) for c in range(2) for i in range(4)]
        images = [read_image(demo.manifest.paths[i]) for i in picks]
        captions = [
            ("≥ 5" if "greater" in demo.manifest.class_words[int(demo.problem.labels[i])] else "< 5") for i in picks
        ]
        rows += [
            ImageRow(name if half == 0 else "", images[half : half + 4], captions[half : half + 4]) for half in (0, 4)
        ]
    panels = {}
    for curve, title in (("seen", "colours as in training"), ("unseen", "colours reversed")):
        panels[title] = {}
        for name, runs in chosen.items():
            values = torch.tensor([run.curves[curve] for run in runs], dtype=torch.float64)  # (seeds, epochs)
            mean, error = metrics.mean_and_standard_error(values, dim=0)
            panels[title][get_method(name).title] = (mean.numpy(), error.numpy())
    return demo_figure(
        rows, panels, "ColoredDigits: a colour that agrees with the label, until it does not", chance=0.5
    )


def save_model(demo: Demo, runs: Sequence[RunResult], path: Path, force: bool) -> Path:
    """The Bayes-CAL run that validates best, as a model that `bayescal predict` reads."""
    run = max(runs, key=last("unseen_val"))
    own = _runs(demo, run.config, [run.seed])[0]
    seen = [e for e, words in enumerate(demo.manifest.environment_words) if words in run.environments]
    predictor = Predictor(
        backbone=demo.backbone,
        method=run.method,
        config=run.config,
        seeds=[run.seed],
        params=run.params,
        classes=list(demo.manifest.classes),
        class_words=demo.manifest.class_words,
        environments=[demo.manifest.environments[e] for e in seen],
        trained_environments=run.environments,
        prototypes=environment_prototypes(demo.problem, own.train)[seen],
        draws=DRAWS,
        record={"demo": True, "curves": run.curves, "train_images": len(own.train)},
    )
    val = own.judged["val"]
    probs = predictor.posterior(demo.problem.features[val])[0][None]
    predictor.threshold = float(metrics.unsure_threshold(probs, demo.problem.labels[val], KEEP))
    predictor.save(path, overwrite=force)
    return path


def _check_place(output: Path, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose another folder")
    if output.is_dir():
        strangers = [p.name for p in output.iterdir() if p.name not in WRITTEN]
        if strangers:
            raise DataError(f"{output} holds something else than a demo ({strangers[0]}): choose another folder")
        if any(output.iterdir()) and not force:
            raise DataError(f"{output} exists already: choose another folder, or run it again with --force")
    check_output(output / "model", overwrite=force)


def _write_results(path: Path, scores: dict[str, dict[str, Score]], chosen: dict[str, list[RunResult]]) -> None:
    content = {
        name: {
            "scores": {place: vars(score) for place, score in scores[name].items()},
            "chosen": [{"seed": run.seed, "config": run.config} for run in runs],
        }
        for name, runs in chosen.items()
    }
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1))
    os.replace(temporary, path)


def _short(path: Path) -> str:
    """Relative to where the user is, when that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
