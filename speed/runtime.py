"""An exported model beside the one in torch: images per second, the first answer, what is installed.

    python -m speed.runtime MODEL EXPORTED [EXPORTED …] [--batches 1 4 16 64] [--threads 2] [--clock processor]
                            [--environment FOLDER]

MODEL is a folder of `bayescal fit`, each EXPORTED one that `bayescal export` made of it, in some precision. Both sides
are given the same decoded pixels and say everything that `details` says; they take turns. `--environment` is a virtual
environment with bayescal-runtime in it: with it the time of `bayescal-predict EXPORTED IMAGE` from nothing, and the
size of the environment are measured.
"""

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bayescal.data.transforms import normalised
from bayescal.end_to_end import load_model
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.export.reading import ExportedModel
from speed.measure import CLOCKS, Clock, Result, interleaved, medians, print_results, spread, write_json
from speed.tower import make_images

RESULTS = Path(__file__).parent / "results"
SECONDS, LARGEST, FASTER = 1.5, 200.0, {"float32": 1.0, "float16": 1.0, "int8": 1.5}


def by_torch(predictor: BasePredictor, pixels: np.ndarray, threads: int) -> Callable[[], object]:
    def work() -> object:
        torch.set_num_threads(threads)
        inputs = torch.from_numpy(normalised(pixels, predictor.backbone.preprocess)).permute(0, 3, 1, 2)
        return predictor.details(predictor.backbone.encode_images(inputs))

    return work


def rates(
    predictor: BasePredictor, exported: dict[str, ExportedModel], batch: int, threads: int, repeats: int, clock: Clock
) -> list[Result]:
    """Images per second at one batch size; the ratio is against torch."""
    side = predictor.backbone.preprocess.size
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    functions: dict[str, Callable[[], object]] = {"torch": by_torch(predictor, pixels, threads)}
    for name, model in exported.items():
        functions[name] = lambda model=model: model.predict_pixels(pixels)
    times = interleaved(functions, repeats, warmup=2, clock=clock)
    middle = medians(times)
    # What takes less time is faster: the ratio is of seconds.
    return [
        Result(
            f"{batch} image{'s' if batch > 1 else ''}, {name}",
            middle[name],
            middle["torch"],
            FASTER.get(name),
            notes={"images/s": batch / middle[name], **spread({name: times[name]})},
        )
        for name in functions
    ]


def first_answer(environment: Path, exported: Path, image: str, clock: str) -> Result:
    """From the start of the program to its end, with nothing loaded; the fastest of three."""
    command = [str(environment / "bin" / "bayescal-predict"), str(exported), image]
    spent = []
    for _ in range(3):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent.append(wall if clock == "wall" else used)
    precision = ExportedModel(exported, 1).labels["precision"]
    return Result(f"first answer from a cold start, {precision}", min(spent), target=SECONDS)


def installed(environment: Path) -> Result:
    size = sum(f.stat().st_size for f in environment.rglob("*") if f.is_file() and not f.is_symlink())
    return Result("installed without the model", size / 1e6, target=LARGEST, unit="MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("exported", nargs="+", type=Path)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS / "runtime-cpu.json")
    arguments = parser.parse_args()
    predictor = load_model(arguments.model)
    models = [ExportedModel(path, arguments.threads) for path in arguments.exported]
    exported = {model.labels["precision"]: model for model in models}
    results: list[Result] = []
    for batch in arguments.batches:
        results += rates(predictor, exported, batch, arguments.threads, arguments.repeats, CLOCKS[arguments.clock])
    if arguments.environment is not None:
        with tempfile.TemporaryDirectory(prefix="bayescal-speed-") as folder:
            (image,) = make_images(Path(folder), 1)
            results += [
                first_answer(arguments.environment, path, image, arguments.clock) for path in arguments.exported
            ]
        results.append(installed(arguments.environment))
    print_results(results, title=f"{arguments.threads} threads, {arguments.clock} time")
    command = f"python -m speed.runtime MODEL EXPORTED … --threads {arguments.threads} --clock {arguments.clock}"
    write_json(results, arguments.output, command, model=predictor.method_name, backbone=predictor.backbone.label)


if __name__ == "__main__":
    main()
