"""How time and memory of a Bayes-CAL training step grow with classes, runs, context vectors and images.

    python -m speed.scaling [--limits] [--device cuda] [--output speed/results]

From a base (10 classes, 3 environments, 1 run, 16 context vectors, 32 images) one quantity grows at a time. Every point
is a process of its own, so that its peak memory is its own. Random weights, a text tower of the embedded backbone's
size; `--limits` adds 1,000 classes with a tower of CLIP RN50's size, some minutes. On a GPU all points have a tower of
that size, 16-bit layers and a captured step. Writes scaling-cpu.json, .md and .png, or scaling-cuda.*.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from speed.measure import ROOT, peak_memory

MINI = {"width": 256, "heads": 4, "layers": 4, "dim": 512}
RN50 = {"width": 512, "heads": 8, "layers": 12, "dim": 1024}
TOWERS = {"mini": MINI, "rn50": RN50}
ENVIRONMENTS = 3
RESULTS = ROOT / "speed" / "results"


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


GPU_SWEEPS = SWEEPS | {"runs": (1, 4, 16, 64, 256)}


def points(sweeps: dict[str, tuple[int, ...]] = SWEEPS, tower: str = "mini") -> list[Point]:
    base = partial(Point, tower=tower)
    grown = [replace(base(sweep), **{sweep: value}) for sweep, values in sweeps.items() for value in values]
    return grown + [base("classes", value, position="middle") for value in sweeps["classes"]]


def bound_to(point: Point, tower_sizes: dict[str, int], device: Any = "cpu", precision: Any = None) -> tuple[Any, Any]:
    """Bayes-CAL on random features and names, an epoch of one step: the method of the stack, and its data."""
    import torch

    from bayescal.backbones.defaults import CLIP
    from bayescal.methods import get_method
    from bayescal.methods.hyperparameters import default_config
    from bayescal.text.tower import TextTower
    from bayescal.training.problem import Problem
    from bayescal.training.runs import Run
    from bayescal.training.stack import bind_stack

    torch.manual_seed(0)
    tower = TextTower(**tower_sizes, activation="silu").to(device)
    names = tuple(f"class {i}" for i in range(point.classes))
    envs = tuple(f"environment {i}" for i in range(ENVIRONMENTS))
    ids = {name: [i + 1] * (1 + i % 3) for i, name in enumerate(names + envs)}  # one to three tokens
    n = torch.arange(point.images, device=device)
    features = torch.randn(point.images, tower.dim).to(device)
    problem = Problem(
        tower, lambda text: ids.get(text, [269]), 100.0, features, n % point.classes, n % ENVIRONMENTS, names, envs,
        precision=precision,
    )  # fmt: skip
    method = get_method("bayes-cal")
    config = default_config(
        method.space, CLIP, epochs=1, batch_size=point.images, n_context=point.context, context_init="",
        position=point.position, class_specific=point.class_specific,
    )  # fmt: skip
    bound, data, _ = bind_stack(method, problem, [Run(config, seed, n) for seed in range(point.runs)])
    return bound, data


def measure(point: Point) -> dict[str, Any]:
    """Seconds of a step (median), and the process's peak memory during steps and before them."""
    from bayescal.training.loop import train

    bound, data = bound_to(point, TOWERS[point.tower])
    held = peak_memory()
    forget_peak()
    seconds = []
    for _ in range(point.repeats + (point.repeats > 1)):
        started = time.perf_counter()
        train(bound, data)  # an epoch of one step
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": statistics.median(seconds[point.repeats > 1 :]),  # the first is a warm-up
        "peak GB": peak_memory(),
        "GB before": held,
        **size_of(bound, point),
    }


def measure_on_gpu(point: Point, precision: Any, steps: int = 10) -> dict[str, Any]:
    """Seconds of a captured step, and the peak of what torch takes of the GPU's memory."""
    import torch

    from bayescal.training.loop import Steps, training_samples
    from bayescal.training.state import State

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    bound, data = bound_to(point, TOWERS[point.tower], "cuda", precision)
    held = torch.cuda.memory_allocated() / 1e9
    program = Steps(bound, data, State.fresh(bound, bound.init(training_samples(data)), ()))
    program.begin(0)
    for i in range(steps + 4):
        if i == 4:  # two steps as they come, one captured, one played
            torch.cuda.synchronize()
            started = time.perf_counter()
        program.at.zero_()
        program.advance()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / steps
    peak = torch.cuda.max_memory_allocated() / 1e9
    return {"seconds": seconds, "peak GB": peak, "GB before": held, "device": "cuda", **size_of(bound, point)}


def size_of(bound: Any, point: Point) -> dict[str, int]:
    trees = [branch.tree for branch in bound.branches.values()]
    return {
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
    command = [sys.executable, "-m", "speed.scaling", "--point", json.dumps(asdict(point))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return asdict(point) | json.loads(done.stdout.splitlines()[-1])


def memory_of(row: dict[str, Any]) -> float:
    """On a CPU the peak of the whole process; on a GPU what a step takes on top of tower and data."""
    return row["peak GB"] - row["GB before"] if row.get("device") == "cuda" else row["peak GB"]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line per point."""
    memory = "GB of a step" if rows[0].get("device") == "cuda" else "peak GB"
    lines = [
        f"| tower | classes | runs | context | images | position | tokens | blocks | ms a step | {memory} |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        position = row["position"] + (", class-specific" if row["class_specific"] else "")
        sizes = [row["tower"], row["classes"], row["runs"], row["context"], row["images"], position]
        ms = 1000 * row["seconds"]
        time_of = f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
        cells = [*sizes, row["tokens"], row["blocks"], time_of, f"{memory_of(row):.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path, tower: str) -> None:
    """Time and peak memory against each quantity, both axes logarithmic but memory's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(SWEEPS), figsize=(12, 5.2), sharey="row", layout="constrained")
    for column, sweep in enumerate(SWEEPS):
        for position, marker in (("end", "o"), ("middle", "s")):
            own = [r for r in rows if (r["sweep"], r["position"], r["tower"]) == (sweep, position, tower)]
            if not own:
                continue
            x = [row[sweep] for row in own]
            axes[0, column].plot(x, [1000 * row["seconds"] for row in own], marker=marker, label=position)
            axes[1, column].plot(x, [memory_of(row) for row in own], marker=marker, label=position)
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2 if sweep != "classes" else 10)
            axis.grid(alpha=0.3)
        axes[0, column].set_yscale("log")
        axes[1, column].set_xlabel({"context": "context vectors"}.get(sweep, sweep))
    axes[0, 0].set_ylabel("ms per step")
    axes[1, 0].set_ylabel("memory, GB")
    axes[0, 0].legend(title="class name at the")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(rows: list[dict[str, Any]], folder: Path, command: str, device: str = "cpu") -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    about = {"command": command, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    if device == "cuda":
        about |= {"device": torch.cuda.get_device_name()}
        text = f"# A Bayes-CAL training step on an {about['device']}\n\n`{command}`; 16-bit layers, captured step.\n"
        text += "Memory is what a step takes on top of the tower (0.3 GB) and the data.\n"
    else:
        text = f"# A Bayes-CAL training step on the CPU\n\n`{command}`; threads: {about['threads']}.\n"
        text += "Peak memory is of the whole process, tower included.\n"
    stem = folder / f"scaling-{device}"
    stem.with_suffix(".json").write_text(json.dumps(about | {"points": rows}, indent=1) + "\n", encoding="utf-8")
    text += "Blocks: parts that the names are read in where memory would not do for all.\n"
    text += f"\n![Time and peak memory]({stem.name}.png)\n\n{table(rows)}\n"
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(rows, stem.with_suffix(".png"), "mini" if device == "cpu" else "rn50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", action="store_true", help="1,000 classes with a tower of CLIP RN50's size too")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(Point(**json.loads(arguments.point)))))
        return
    on_gpu = arguments.device == "cuda"
    wanted = points(GPU_SWEEPS, "rn50") if on_gpu else points() + (LIMITS if arguments.limits else [])
    rows = []
    for point in wanted:
        rows.append(on_the_gpu(point) if on_gpu else in_fresh_process(point))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    options = (["--limits"] if arguments.limits else []) + (["--device cuda"] if on_gpu else [])
    write(rows, arguments.output, " ".join(["python -m speed.scaling", *options]), arguments.device)


def on_the_gpu(point: Point) -> dict[str, Any]:
    import torch

    return asdict(point) | measure_on_gpu(point, torch.float16)


if __name__ == "__main__":
    main()
