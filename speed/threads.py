"""One thread or all of them, for small and large steps, alone and beside busy processes:

    python -m speed.threads [--rivals 0 1 2] [--repeats 5] [--output speed/results/threads-cpu.json]

A step is one of Bayes-CAL's training on the embedded backbone. Rivals are processes that do nothing but count; how busy
the machine was with others before is recorded too (load average), and on a busy machine the smallest of the repeats
says most. `engine/threads.py` takes its threshold from the table: one thread where all of them win little alone.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bayescal.backbones import load_backbone
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.loop import Steps, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack
from bayescal.training.state import State
from bayescal.util.atomic import write_text
from speed.measure import ROOT

# classes, images per class, runs of the stack: a single few-shot fit, what `auto` trains, a search, many classes
SIZES = ((7, 16, 1), (7, 32, 4), (7, 32, 12), (65, 16, 1), (65, 16, 12), (345, 16, 4), (1000, 4, 1))
METHOD = "bayes-cal"
SECONDS = 1.0  # of each measurement, at least
WORDS = ("red", "blue", "old", "new", "small", "big", "wet", "dry", "soft", "hard")
THINGS = ("dog", "cat", "house", "car", "tree", "bird", "fish", "chair", "table", "cup")


@dataclass(frozen=True)
class Measured:
    """Of one step, at one number of threads beside so many rivals."""

    classes: int
    images: int
    runs: int
    operations: float  # of a step
    threads: int
    rivals: int
    wall: float  # seconds, the smallest of the repeats
    processor: float  # … of this process


def names_of(classes: int) -> list[str]:
    """So many different class names, a thousand at most."""
    return [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in THINGS][:classes]


def stepper(classes: int, shots: int, runs: int) -> tuple[Callable[[], None], float, int]:
    """A function that takes one step, the operations of a step, and the number of images."""
    backbone = load_backbone("mini")
    names = names_of(classes)
    n = classes * shots
    labels, environments = torch.arange(n) % classes, torch.arange(n) // classes % 3
    features = torch.randn(n, backbone.dim, generator=torch.Generator().manual_seed(0))
    problem = Problem.of(backbone, features, labels.numpy(), environments.numpy(), names, ["photo", "sketch", "art"])
    config = default_config(get_method(METHOD).space, backbone.defaults)
    stack = [Run(config, seed, torch.arange(n)) for seed in range(runs)]
    bound, data, _ = bind_stack(get_method(METHOD), problem, stack)
    samples = training_samples(data)
    operations = runs * bound.training_operations(samples) / bound.steps(samples)
    steps = Steps(bound, data, State.fresh(bound, bound.init(samples), {}))

    def step() -> None:
        steps.begin(0)
        steps.advance()

    return step, operations, n


@contextmanager
def busy(rivals: int) -> Iterator[None]:
    """So many processes that keep a core busy each, and live no longer than this one."""
    loop = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    children = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(rivals)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def seconds(step: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Wall and processor time of one step, the smallest of the repeats; a repeat is as many steps as SECONDS hold."""
    step()
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - wall < SECONDS / repeats or not count:
            step()
            count += 1
        walls.append((time.perf_counter() - wall) / count)
        processors.append((time.process_time() - processor) / count)
    return min(walls), min(processors)


def measure(rivals: Sequence[int], threads: Sequence[int], repeats: int) -> Iterator[Measured]:
    for classes, shots, runs in SIZES:
        step, operations, n = stepper(classes, shots, runs)
        for others in rivals:
            with busy(others):
                for count in threads:
                    torch.set_num_threads(count)
                    wall, processor = seconds(step, repeats)
                    yield Measured(classes, n, runs, operations, count, others, wall, processor)


def describe(one: Measured) -> str:
    return (
        f"{one.classes:5} classes {one.images:5} images {one.runs:3} runs  {one.operations:8.2g} operations  "
        f"{one.threads} threads beside {one.rivals}: "
        f"{1000 * one.wall:8.1f} ms wall {1000 * one.processor:8.1f} processor"
    )


def record(found: Sequence[Measured], load: Sequence[float]) -> dict[str, Any]:
    return {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "load before": list(load),
        "steps": [asdict(one) for one in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "speed" / "results" / "threads-cpu.json")
    arguments = parser.parse_args()
    load = os.getloadavg()
    found = []
    for one in measure(arguments.rivals, arguments.threads, arguments.repeats):
        found.append(one)
        print(describe(one), flush=True)
        write_text(arguments.output, json.dumps(record(found, load), indent=1) + "\n")  # so far: it may be stopped


if __name__ == "__main__":
    main()
