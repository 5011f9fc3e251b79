"""How time and memory of a Bayes-CAL training step grow with classes, runs, context vectors and images.

    python -m benchmarks.scaling [--limits] [--output benchmarks/results]

From a base (10 classes, 3 environments, 1 run, 16 context vectors, 32 images) one quantity grows at a time. Every point
is a process of its own, so that its peak memory is its own. Random weights, a text tower of the embedded backbone's
size; `--limits` adds 1,000 classes with a tower of CLIP RN50's size, some minutes.
Writes scaling-cpu.json, scaling-cpu.md and scaling-cpu.png.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from benchmarks.pacs import peak_memory

MINI = {"width": 256, "heads": 4, "layers": 4, "dim": 512}
RN50 = {"width": 512, "heads": 8, "layers": 12, "dim": 1024}
ENVIRONMENTS = 3
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Point:
    """One measurement: what is varied, and all sizes."""

    sweep: str
    classes: int = 10
    runs: int = 1
    context: int = 16
    images: int = 32
    position: str = "end"
    class_specific: bool = False
    tower: str = "mini"
    repeats: int = 5


SWEEPS = {
    "classes": (10, 30, 100, 300, 1000),
    "runs": (1, 2, 4, 8, 16, 32),
    "context": (4, 8, 16, 32),
    "images": (8, 32, 128, 512),
}
LIMITS = [
    Point("classes", 1000, position=position, class_specific=own, tower="rn50", repeats=1)
    for position, own in (("end", False), ("middle", False), ("end", True))
]


def points() -> list[Point]:
    grown = [replace(Point(sweep), **{sweep: value}) for sweep, values in SWEEPS.items() for value in values]
    return grown + [Point("classes", value, position="middle") for value in SWEEPS["classes"]]


def measure(point: Point) -> dict[str, Any]:
    """Seconds of a step (median), and the process's peak memory during steps and before them."""
    import torch

    from bayescal.backbones.defaults import CLIP
    from bayescal.backbones.text_tower import TextTower
    from bayescal.methods import get_method
    from bayescal.methods.base import Runs
    from bayescal.space import default_config
    from bayescal.stacks import Problem, Run, stack_data
    from bayescal.training import train

    torch.manual_seed(0)
    tower = TextTower(**(RN50 if point.tower == "rn50" else MINI))
    names = tuple(f"class {i}" for i in range(point.classes))
    places = tuple(f"place {i}" for i in range(ENVIRONMENTS))
    ids = {name: [i + 1] * (1 + i % 3) for i, name in enumerate(names + places)}  # one to three tokens
    n = torch.arange(point.images)
    features = torch.randn(point.images, tower.dim)
    problem = Problem(
        tower, lambda text: ids.get(text, [269]), 100.0, features, n % point.classes, n % ENVIRONMENTS, names, places
    )
    method = get_method("bayes-cal")
    config = default_config(
        method.space, CLIP, epochs=1, batch_size=point.images, n_context=point.context, context_init="",
        position=point.position, class_specific=point.class_specific,
    )  # fmt: skip
    runs = [Run(config, seed, n) for seed in range(point.runs)]
    bound = method(problem.task([places]), Runs.stack(method.space, [config] * point.runs, list(range(point.runs))))
    data = stack_data(problem, runs, [list(range(ENVIRONMENTS))] * point.runs)
    held = peak_memory()
    forget_peak()
    seconds = []
    for _ in range(point.repeats + (point.repeats > 1)):
        started = time.perf_counter()
        train(bound, data)  # an epoch of one step
        seconds.append(time.perf_counter() - started)
    trees = [branch.tree for branch in bound.branches.values()]
    return {
        "seconds": statistics.median(seconds[point.repeats > 1 :]),  # the first is a warm-up
        "peak GB": peak_memory(),
        "GB before": held,
        "tokens": point.runs * sum(tree.n_tokens for tree in trees),
        "blocks": max(tree.n_blocks(point.runs) for tree in trees),
    }


def forget_peak() -> None:
    """From here on `peak_memory` is the peak of what follows, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def in_fresh_process(point: Point) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--point", json.dumps(asdict(point))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return asdict(point) | json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line per point."""
    lines = [
        "| tower | classes | runs | context | images | position | tokens | blocks | ms a step | peak GB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        position = row["position"] + (", class-specific" if row["class_specific"] else "")
        sizes = [row["tower"], row["classes"], row["runs"], row["context"], row["images"], position]
        cells = [*sizes, row["tokens"], row["blocks"], f"{1000 * row['seconds']:.0f}", f"{row['peak GB']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time and peak memory against each quantity, both axes logarithmic but memory's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(SWEEPS), figsize=(12, 5.2), sharey="row", layout="constrained")
    for column, sweep in enumerate(SWEEPS):
        for position, marker in (("end", "o"), ("middle", "s")):
            own = [r for r in rows if (r["sweep"], r["position"], r["tower"]) == (sweep, position, "mini")]
            if not own:
                continue
            x = [row[sweep] for row in own]
            axes[0, column].plot(x, [1000 * row["seconds"] for row in own], marker=marker, label=position)
            axes[1, column].plot(x, [row["peak GB"] for row in own], marker=marker, label=position)
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2 if sweep != "classes" else 10)
            axis.grid(alpha=0.3)
        axes[0, column].set_yscale("log")
        axes[1, column].set_xlabel({"context": "context vectors"}.get(sweep, sweep))
    axes[0, 0].set_ylabel("ms per step")
    axes[1, 0].set_ylabel("peak memory, GB")
    axes[0, 0].legend(title="class name at the")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(rows: list[dict[str, Any]], folder: Path, command: str) -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    about = {"command": command, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    stem = folder / "scaling-cpu"
    stem.with_suffix(".json").write_text(json.dumps(about | {"points": rows}, indent=1) + "\n", encoding="utf-8")
    text = f"# A Bayes-CAL training step on the CPU\n\n`{command}`; threads: {about['threads']}.\n"
    text += "Peak memory is of the whole process, tower included.\n"
    text += "Blocks: parts that the names are read in where memory would not do for all.\n"
    text += f"\n![Time and peak memory]({stem.name}.png)\n\n{table(rows)}\n"
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(rows, stem.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", action="store_true", help="1,000 classes with a tower of CLIP RN50's size too")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(Point(**json.loads(arguments.point)))))
        return
    rows = []
    for point in points() + (LIMITS if arguments.limits else []):
        rows.append(in_fresh_process(point))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    write(
        rows, arguments.output, " ".join(["python -m benchmarks.scaling", *(["--limits"] if arguments.limits else [])])
    )


if __name__ == "__main__":
    main()
