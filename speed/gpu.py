"""The paper's search on one GPU: 240 runs as one stack, against the plain loop.

    python -m speed.gpu [--precision float16] [--plain-steps 100] [--bundle PACS.bundle]

`search`: 20 trials × 3 seeds × 4 held-out environments of PACS on a model of CLIP RN50's size with random weights: 7
classes, 3 environments, 16 context vectors, 32 images, 30 epochs of 4 steps, evaluated on validation and test after
each. The plain loop's steps are measured in the same process and multiplied: 28,800 of them would take half an hour.
`same`: with a packed data set (`bayescal data pack`), the same search on its real features, on the CPU in float32 and
here, run by run. `limits`: 1,000 classes. Writes results/gpu.jsonl, which `speed.compare` reads.
"""

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bayescal.backbones.defaults import CLIP
from bayescal.methods import get_method
from bayescal.text.open_clip_tower import text_tower_from_open_clip
from bayescal.text.precision import PRECISIONS
from bayescal.training.loop import Steps, train, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import bind_stack, train_runs
from bayescal.training.state import State
from speed.measure import RECORDS, Result, operations_by_kind, print_results, write_record
from speed.names import PACS_CLASSES, PACS_ENVIRONMENTS
from speed.reference import random_clip
from speed.stack import METHOD, make_runs, random_features
from speed.step import BATCH, check_losses, lively_images, make_setting, plain_ids

SECONDS_TARGET, RATIO_TARGET, POINTS_TARGET, MEMORY_TARGET = 2.0, 400.0, 0.5, 16.0
H200_TFLOPS = 989.0  # dense products of 16-bit numbers, NVIDIA's data sheet
# Which kernel does what, by its name; the first that matches counts.
KINDS = {
    "attention": ("sdpa", "flash", "fmha", "cudnn"),
    "products": ("gemm", "nvjet", "cutlass", "xmma"),
    "layer norm": ("layer_norm", "LayerNorm"),
    "activation": ("silu", "Gelu", "gelu"),
}
DEVICE = torch.device("cuda")


def search_problem(model: nn.Module, tokenize: Callable, precision: torch.dtype) -> Problem:
    """PACS in numbers: random features on the GPU, and the model's text tower."""
    tower = text_tower_from_open_clip(model)
    features, labels, environments = (part.to(DEVICE) for part in random_features(tower.dim))
    return Problem(
        tower, plain_ids(tokenize, tower), float(model.logit_scale.exp()), features, labels, environments,
        PACS_CLASSES, PACS_ENVIRONMENTS, precision=precision,
    )  # fmt: skip


def search(precision: torch.dtype, plain_steps: int, repeats: int = 3) -> list[Result]:
    torch.manual_seed(1)
    model, tokenize = random_clip()
    model = model.to(DEVICE)
    problem = search_problem(model, tokenize, precision)
    runs = make_runs(problem, CLIP, held_out=range(len(PACS_ENVIRONMENTS)))
    steps = runs[0].config["epochs"] * -(-len(runs[0].train) // BATCH)
    plain, gap = plain_step(model, tokenize, plain_steps)
    whole = len(runs) * steps * plain

    torch.cuda.reset_peak_memory_stats()
    evaluated = timed(lambda: train_runs(METHOD, problem, runs), repeats)
    memory = torch.cuda.max_memory_allocated() / 1e9
    bare = [dataclasses.replace(run, eval_sets={}) for run in runs]
    unevaluated = timed(lambda: train_runs(METHOD, problem, bare), repeats)
    account = account_of_a_step(problem, runs)
    operations = account.pop("operations") * steps
    about = {"runs": len(runs), "steps of each": steps, "precision": str(precision).removeprefix("torch.")}
    shared = {"plain": whole, "tokens": account.pop("tokens"), "operations": operations, "memory": memory}
    limit = operations / (H200_TFLOPS * 1e12)
    reached = {
        "TFLOP/s": operations / unevaluated / 1e12,
        "seconds at the peak rate": limit,
        "share of the peak rate": limit / unevaluated,
    }
    seconds = f"{len(runs)} runs of {steps} steps"
    return [
        Result(f"{seconds}, evaluated every epoch", evaluated, target=SECONDS_TARGET, memory=memory, notes=about),
        Result(f"{seconds}, evaluated every epoch / plain loop, not", evaluated, target=RATIO_TARGET, **shared,
               notes={"plain step, s": plain, "plain steps measured": plain_steps,
                      "relative difference of the losses": gap}),
        Result(f"{seconds}, training alone", unevaluated, target=SECONDS_TARGET, operations=operations,
               notes=reached | account),
    ]  # fmt: skip


def timed(function: Callable[[], object], repeats: int) -> float:
    """Median seconds after one call that warms up."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def plain_step(model: nn.Module, tokenize: Callable, steps: int) -> tuple[float, float]:
    """Seconds of the plain loop's step, and how far its loss is from ours. Its images are on the GPU already."""
    pixels = lively_images(model, BATCH)
    with torch.no_grad():
        features = model.encode_image(pixels)
    setting = make_setting(model, tokenize, METHOD, PACS_CLASSES, PACS_ENVIRONMENTS[:3], pixels, features)
    gap = check_losses(setting, tolerance=1e-3)
    for _ in range(5):
        setting.plain_step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        setting.plain_step()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps, gap


def account_of_a_step(problem: Problem, runs: Sequence[Run], steps: int = 8) -> dict[str, float]:
    """Where a step's time goes on the GPU, by kind of kernel, and how many tokens and operations it has."""
    from torch.profiler import ProfilerActivity, profile

    method, data, _ = bind_stack(get_method(METHOD), problem, runs)
    state = State.fresh(method, method.init(training_samples(data)), ())
    program = Steps(method, data, state)
    program.begin(0)
    operations = operations_by_kind(program._advance)
    for _ in range(4):
        program.at.zero_()
        program.advance()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        started = time.perf_counter()
        for _ in range(steps):
            program.at.zero_()
            program.advance()
        torch.cuda.synchronize()
        wall = (time.perf_counter() - started) / steps
    spent: dict[str, float] = {}
    for event in found.key_averages():
        kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
        spent[kind] = spent.get(kind, 0.0) + event.self_device_time_total / 1e3 / steps
    packed = method.read.packed
    return {
        "operations": sum(operations.values()),
        "tokens": len(packed.mask) * len(runs),
        "ms of a step, recorded": 1000 * wall,
        **{f"ms of a step: {kind}": value for kind, value in sorted(spent.items(), key=lambda item: -item[1])},
        "TFLOP/s inside the products": operations["products"] / 1e9 / spent["products"],
    }


def same(bundle: Path, precisions: Sequence[str]) -> list[Result]:
    """Accuracies of the search on real features, run by run: on the CPU in float32, and here."""
    from bayescal.benchmark.bundle import load_bundle

    prepared = load_bundle(bundle)
    held_out = range(len(prepared.problem.environment_words))
    options = {"held_out": held_out, "n_context": 16, "context_init": ""}
    expected = train_runs(
        METHOD, prepared.problem, make_runs(prepared.problem, prepared.backbone_info.defaults, **options)
    )
    results = []
    for name in precisions:
        problem = dataclasses.replace(load_bundle(bundle, DEVICE).problem, precision=PRECISIONS[name])
        runs = make_runs(problem, prepared.backbone_info.defaults, **options)
        seconds = timed(lambda p=problem, r=runs: train_runs(METHOD, p, r), 1)
        found = train_runs(METHOD, problem, runs)
        gaps = accuracy_gaps(expected, found)
        notes = {
            "mean difference, points": float(gaps.abs().mean()),
            "runs within 0.5 points": float((gaps.abs() <= POINTS_TARGET).double().mean()),
            "difference of the means, points": float(gaps.mean()),
            "seconds": seconds,
        }
        what = f"{bundle.stem}, {len(runs)} runs, {name}: largest difference of a test accuracy from the CPU's"
        results.append(Result(what, float(gaps.abs().max()), target=POINTS_TARGET, unit="points", notes=notes))
    return results


def accuracy_gaps(one: Sequence[RunResult], two: Sequence[RunResult]) -> Tensor:
    """Differences of the test accuracy after the last epoch, in percentage points: (R,)."""
    last = lambda results: torch.tensor([result.curves["test"][-1] for result in results])  # noqa: E731
    return 100 * (last(two) - last(one))


def limits(precision: torch.dtype) -> list[Result]:
    """A stack of 8 runs on 1,000 classes with 16 context vectors, on a card of 16 GB."""
    from speed.scaling import RN50, Point, bound_to

    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(MEMORY_TARGET * 1e9 / total)
    results = []
    try:
        for kind in (precision, torch.float32):
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            point = Point("classes", 1000, runs=8, tower="rn50")
            method, data = bound_to(point, RN50, DEVICE, kind)
            seconds = timed(lambda m=method, d=data: train(m, d), 2)
            memory = torch.cuda.max_memory_allocated() / 1e9
            notes = {
                "seconds of a step": seconds,
                "GB reserved": torch.cuda.max_memory_reserved() / 1e9,
                "blocks": max(branch.tree.n_blocks(point.runs) for branch in method.branches.values()),
            }
            what = f"8 runs, 1,000 classes, 16 vectors, {str(kind).removeprefix('torch.')}, 16 GB card: peak memory"
            results.append(Result(what, memory, target=MEMORY_TARGET, unit="GB", notes=notes))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["search", "same", "limits"])
    parser.add_argument("--precision", choices=PRECISIONS, default="float16")
    parser.add_argument("--plain-steps", type=int, default=100)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--output", type=Path, default=RECORDS.with_name("gpu.jsonl"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use")
    precision = PRECISIONS[arguments.precision]
    parts: dict[str, Callable[[], list[Result]]] = {
        "search": lambda: search(precision, arguments.plain_steps),
        "limits": lambda: limits(precision),
    }
    if arguments.bundle:
        parts["same"] = lambda: same(arguments.bundle, list(PRECISIONS))
    results = []
    for name in arguments.only or parts:
        if name not in parts:
            parser.error("same needs a packed data set: --bundle FILE")
        results += parts[name]()
    print_results(results, title=f"bayescal on {torch.cuda.get_device_name()}")
    for result in results:
        print(result.what, result.notes)
    write_record(results, arguments.output, "speed.gpu", device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
