"""One image: `bayescal predict` from a cold start, and what a model in use adds to the encoding of the image.

    python -m speed.predict MODEL IMAGE [--repeats 3] [--calls 50]

Processor time, in fresh processes and on one thread, so that a busy machine disturbs little. Cold: the
whole command, beside an interpreter that only imports torch. Warm: `details` of one image's features by the default
model (`auto`, every member, 20 posterior samples, 16 images per class), at 6, 60 and 345 classes; what it has learned
is made up, which costs the same. Warm answers also in wall time, with as many threads as torch takes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from bayescal.backbones import Backbone, load_backbone
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.members import MEMBERS
from bayescal.estimator.predictor import Predictor, StackedPredictor, member_predictor
from bayescal.evaluation.calibration import environment_prototypes
from bayescal.evaluation.familiarity import Familiarity
from bayescal.methods import get_method
from bayescal.training.loop import training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack
from speed.measure import CLOCKS, Result, interleaved, medians, print_results, spread, write_json
from speed.threads import names_of

RESULTS = Path(__file__).parent / "results" / "predict-cpu.json"
CLASSES, ENVIRONMENTS, SHOTS, SAMPLES = (6, 60, 345), ("photo", "sketch", "art"), 16, 20
COLD_SECONDS, COLD_MEMORY, WARM_SECONDS = 3.5, 0.6, 0.005
# A process of its own per measurement: its children are then the one command that was measured.
ONCE = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * unit / 1e9]))
"""


# ---- cold -----------------------------------------------------------------------------------------------------------


def started_once(command: Sequence[str]) -> tuple[float, float]:
    """Processor seconds and peak memory (GB) of a command, from the start of its process to its end."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", ONCE, *command], check=True, capture_output=True, text=True, env=alone
    )
    seconds, memory = json.loads(done.stdout)
    return seconds, memory


def cold(model: Path, image: Path, repeats: int) -> list[Result]:
    """Of `bayescal predict`, and of torch's import alone; they take turns."""
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "bayescal predict, one image": [sys.executable, "-m", "bayescal", "predict", str(model), str(image), "--json"],
    }
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in commands}
    for _ in range(repeats):
        for what, command in commands.items():
            found[what].append(started_once(command))
    results = []
    for what, each in found.items():
        seconds, memory = zip(*each, strict=True)
        ours = what != "import torch"
        notes = {**spread({"seconds": seconds}), **spread({"GB": memory})} | (
            {"target GB": COLD_MEMORY} if ours else {}
        )
        target = COLD_SECONDS if ours else None
        results.append(
            Result(what, statistics.median(seconds), target=target, notes=notes, memory=statistics.median(memory))
        )
    return results


# ---- warm -----------------------------------------------------------------------------------------------------------


def made_up_model(backbone: Backbone, classes: int) -> BasePredictor:
    """The default model at so many classes, as large as a trained one: SHOTS images per class, all members.

    As it is read from its folder, where members share what is the same in them.
    """
    n = classes * SHOTS
    random = torch.Generator().manual_seed(0)
    features = torch.randn(n, backbone.dim, generator=random)
    labels, environments = torch.arange(n) % classes, torch.arange(n) % len(ENVIRONMENTS)
    words = names_of(classes)
    problem = Problem.of(backbone, features, labels.numpy(), environments.numpy(), words, ENVIRONMENTS)
    texts = torch.randn(classes, backbone.dim, generator=random)
    shared = {
        "classes": words,
        "class_words": tuple(words),
        "environments": list(ENVIRONMENTS),
        "prototypes": environment_prototypes(features, environments, len(ENVIRONMENTS)),
        "samples": SAMPLES,
    }
    members: dict[str, Predictor] = {}
    for one in MEMBERS:
        method, config = get_method(one.method), one.config(backbone.defaults, n)
        if one.method == "logistic-regression":  # solving for it would take minutes
            params = {
                "weight": torch.randn(1, backbone.dim, classes, generator=random),
                "bias": torch.zeros(1, classes),
            }
        else:
            bound, data, _ = bind_stack(method, problem, [Run(config, 1, torch.arange(n))])
            params = bound.init(training_samples(data))
            if method.trained_by_gradient:  # no two members learn the same
                params |= {
                    name: value + 0.01 * torch.randn(value.shape, generator=random)
                    for name, value in params.items()
                    if value.is_floating_point()
                }
        members[one.name] = member_predictor(
            backbone, shared, method=method, config=config, seeds=[1], params=params, trained_environments=ENVIRONMENTS
        )
    whole = StackedPredictor(
        backbone=backbone,
        members=members,
        weights=torch.full((len(members),), 1 / len(members), dtype=torch.float64),
        familiarity=Familiarity.of(features, environments, F.normalize(texts, dim=-1)),
        **shared,
    )
    with tempfile.TemporaryDirectory(prefix="bayescal-speed-") as folder:
        whole.save(Path(folder) / "model")
        return BasePredictor.load(Path(folder) / "model", device="cpu")


def answering(predictor: BasePredictor) -> Callable[[], object]:
    features = torch.randn(1, predictor.backbone.dim, generator=torch.Generator().manual_seed(1))
    return lambda: predictor.details(features)


def warm(calls: int) -> list[Result]:
    """Of an answer to one image, after its encoding, which stands beside it: on one thread, and as it comes."""
    every = torch.get_num_threads()
    backbone = load_backbone("mini", "cpu")
    side = backbone.preprocess.size
    image = torch.zeros(1, 3, side, side)
    functions: dict[str, Callable[[], object]] = {"encoding one image": lambda: backbone.encode_images(image)}
    for classes in CLASSES:
        functions[f"answer from its features, {classes} classes"] = answering(made_up_model(backbone, classes))
    results = []
    for threads, clock, said in ((1, "processor", ""), (every, "wall", f", {every} threads, wall time")):
        torch.set_num_threads(threads)
        times = interleaved(functions, calls, warmup=3, clock=CLOCKS[clock])
        middle = medians(times)
        results += [
            Result(
                what + said, middle[what], target=WARM_SECONDS if "answer" in what else None, notes=spread({what: own})
            )
            for what, own in times.items()
        ]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes of each command")
    parser.add_argument("--calls", type=int, default=50, help="warm answers of each size")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = cold(arguments.model, arguments.image, arguments.repeats) + warm(arguments.calls)
    print_results(results, title="one thread and processor time, where nothing else is said")
    command = f"python -m speed.predict MODEL IMAGE --repeats {arguments.repeats} --calls {arguments.calls}"
    write_json(results, arguments.output, command, clock="processor")


if __name__ == "__main__":
    main()
