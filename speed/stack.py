"""60 Bayes-CAL runs as one stack against 60 single runs, on the embedded backbone.

    python -m speed.stack [--problem FILE] [--singles 6 | --full]

20 trials of the search space × 3 seeds, the PACS task with one environment held out: 7 classes, 3 environments to train
on, 16 shots, 30 epochs, validated and tested after each. Features are random, of the right shapes, unless a file
of `bayescal data pack` is given. Some single runs, spread over the stack, are timed in turns with it and stand for all.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayescal.backbones import load_backbone
from bayescal.backbones.defaults import TrainingDefaults
from bayescal.data import few_shot_split
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import draw_config
from bayescal.training.loop import Steps, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import bind_stack, train_runs
from bayescal.training.state import State
from speed.measure import CLOCKS, Clock, Result, count_operations, peak_memory, print_results
from speed.names import PACS_CLASSES, PACS_ENVIRONMENTS

METHOD, TRIALS, SEEDS, SHOTS = "bayes-cal", 20, (1, 2, 3), 16
PACS_SIZES = (2048, 2344, 1670, 3929)  # images of each environment
TARGET = 2.0  # singles / stack
TOLERANCE = 1e-4


def random_problem(seed: int = 0) -> tuple[Problem, TrainingDefaults]:
    backbone = load_backbone("mini")
    features, labels, environments = random_features(backbone.dim, seed)
    problem = Problem(
        backbone.text, backbone.tokenize, backbone.logit_scale, features, labels, environments,
        PACS_CLASSES, PACS_ENVIRONMENTS,
    )  # fmt: skip
    return problem, backbone.defaults


def random_features(dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """As many features as PACS has images: a class direction, an environment direction, noise. With their labels."""
    generator = torch.Generator().manual_seed(seed)
    environments = torch.repeat_interleave(torch.arange(len(PACS_SIZES)), torch.tensor(PACS_SIZES))
    labels = torch.randint(len(PACS_CLASSES), environments.shape, generator=generator)
    normal = lambda n: torch.randn(n, dim, generator=generator)  # noqa: E731
    features = normal(len(labels)) + normal(len(PACS_CLASSES))[labels] + normal(len(PACS_SIZES))[environments]
    return features, labels, environments


def make_runs(
    problem: Problem,
    defaults: TrainingDefaults,
    trials: int = TRIALS,
    held_out: Sequence[int] | None = None,
    **options: object,
) -> list[Run]:
    """Trials × seeds with each of some environments held out, by default the last.

    Settings stay at their defaults: they would part the stack.
    """
    space, device = get_method(METHOD).space, problem.features.device
    settings = {"position": "end", "class_specific": False, **options}
    labels, environments = problem.labels.cpu().numpy(), problem.environments.cpu().numpy()
    environment_ids = range(len(problem.environment_words))
    runs = []
    for out in held_out or [environment_ids[-1]]:
        test = torch.from_numpy((environments == out).nonzero()[0]).to(device)
        for seed in SEEDS:
            split = few_shot_split(
                labels, environments, train_environments=[e for e in environment_ids if e != out],
                shots=SHOTS, val_shots=SHOTS, seed=seed,
                class_names=problem.class_words, environment_names=problem.environment_words,
            )  # fmt: skip
            rows = torch.from_numpy(split.train).to(device)
            eval_sets = {"val": torch.from_numpy(split.val).to(device), "test": test}
            runs += [Run(draw_config(space, defaults, i, **settings), seed, rows, eval_sets) for i in range(trials)]
    return runs


def largest_gap(stacked: RunResult, single: RunResult) -> float:
    """Largest absolute difference of any final parameter."""
    return max(_gap(stacked.params[name], single.params[name]) for name in single.params)


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def run(
    problem_file: Path | None = None,
    singles: int = 6,
    clock: Clock = time.perf_counter,
    trials: int = TRIALS,
    **options,
) -> list[Result]:
    """`singles`: how many of the runs are also trained alone; `trials` and `options` make a smaller benchmark."""
    if problem_file is None:
        problem, defaults = random_problem()
    else:
        from bayescal.benchmark.bundle import load_bundle

        prepared = load_bundle(problem_file)
        problem, defaults = prepared.problem, prepared.backbone_info.defaults
    runs = make_runs(problem, defaults, trials, **options)
    train_runs(METHOD, problem, make_runs(problem, defaults, 1, epochs=1))  # warm up
    chosen = torch.linspace(0, len(runs) - 1, min(singles, len(runs))).round().int().tolist()

    before, after = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    alone: dict[int, RunResult] = {}
    seconds = []

    def train_alone(rows: list[int]) -> None:
        for row in rows:
            started = clock()
            alone[row] = train_runs(METHOD, problem, [runs[row]])[0]
            seconds.append(clock() - started)

    train_alone(before)
    started = clock()
    stacked = train_runs(METHOD, problem, runs)
    ours = clock() - started
    train_alone(after)

    gap = max(largest_gap(stacked[row], result) for row, result in alone.items())
    if gap > TOLERANCE:
        raise AssertionError(f"rows of the stack differ from single runs by {gap:.1e}")
    plain = statistics.mean(seconds) * len(runs)
    notes = {
        "single runs timed": len(chosen),
        "seconds of a single run (min, max)": f"{min(seconds):.4g}, {max(seconds):.4g}",
        "largest difference of final parameters": gap,
        "features": "random" if problem_file is None else problem_file.name,
    }
    what = f"{len(runs)} runs as one stack / one by one, mini"
    return [Result(what, ours, plain, TARGET, notes=notes, memory=peak_memory(), **size_of(problem, runs))]


def size_of(problem: Problem, runs: Sequence[Run]) -> dict[str, float]:
    """Tokens that the text tower reads in a step of the whole stack, and operations of all steps."""
    method, data, _ = bind_stack(get_method(METHOD), problem, runs[:1])
    steps = Steps(method, data, State.fresh(method, method.init(training_samples(data)), ()))
    one = count_operations(steps.advance)
    return {
        "tokens": len(runs) * len(method.read.packed.mask),
        "operations": len(runs) * runs[0].config["epochs"] * steps.count * one,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", type=Path)
    parser.add_argument("--singles", type=int, default=6)
    parser.add_argument("--full", action="store_true", help="time every single run")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    singles = TRIALS * len(SEEDS) if arguments.full else arguments.singles
    results = run(arguments.problem, singles, CLOCKS[arguments.clock])
    print_results(results)
    print(results[0].notes)


if __name__ == "__main__":
    main()
