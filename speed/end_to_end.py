"""Does an image model learn? Trains one from pixels, leaving an environment out, and records every epoch as JSON.

    python -m speed.end_to_end DATA --vision resnet18 --image-size 96 --held-out sketch --device cuda --minutes 3

Needs torch, timm, numpy, Pillow and safetensors; where bayescal is not installed, PYTHONPATH=src does.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from bayescal.data import Manifest, read_manifest
from bayescal.end_to_end import algorithm_names, fit_end_to_end
from bayescal.end_to_end.data import PlainImages, default_workers
from bayescal.end_to_end.state import State
from bayescal.end_to_end.train import accuracy
from bayescal.end_to_end.vision import load_vision
from bayescal.errors import DataError
from bayescal.methods import method_reference


def main() -> None:
    options = arguments()
    learned, held_out = apart(read_manifest(options.data), options.held_out)
    device = torch.device(options.device)
    workers = default_workers(device) if options.workers is None else options.workers
    labels = torch.from_numpy(held_out.class_ids.copy())
    images = PlainImages(held_out.paths, load_vision(options.vision, options.image_size).preprocess)
    epochs: list[dict] = []
    clock = Clock()

    def on_epoch(method, state: State) -> bool:
        clock.pause()  # measuring on the held-out environment is no part of a training
        epochs.append(
            {
                "epoch": state.epoch,
                "loss": state.curves["total"][-1],
                "val": state.curves["val"][-1],
                "held_out": accuracy(method, state.params, images, labels, workers),
                "seconds": round(clock.seconds, 2),
            }
        )
        print(json.dumps(epochs[-1]), flush=True)
        clock.go_on()
        return clock.seconds > 60 * options.minutes

    settings = {"epochs": options.epochs, "image_size": options.image_size, "batch_size": options.batch_size}
    settings |= {name: json.loads(value) for name, _, value in (pair.partition("=") for pair in options.set)}
    predictor = fit_end_to_end(
        learned,
        vision=options.vision,
        weights=options.vision_weights,
        method=options.algorithm,
        options=settings,
        seed=options.seed,
        device=options.device,
        workers=workers,
        on_epoch=on_epoch,
    )
    write(options, predictor, epochs, len(held_out), workers)


class Clock:
    """Seconds, less the pauses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.go_on()

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self.since

    def go_on(self) -> None:
        self.since = time.perf_counter()


def apart(manifest: Manifest, name: str) -> tuple[Manifest, Manifest]:
    """The images to learn from, and those of the environment that is left out."""
    if name not in manifest.environments:
        raise DataError(f"--held-out {name}: there are {', '.join(manifest.environments)}")
    there = manifest.environment_ids == manifest.environments.index(name)
    return manifest.select(~there), manifest.select(there)


def write(options: argparse.Namespace, predictor, epochs: list[dict], held_out: int, workers: int) -> None:
    record = predictor.record
    best = max(range(len(epochs)), key=lambda i: (epochs[i]["val"], i))
    result = {
        "algorithm": method_reference(predictor.method),
        "vision": predictor.backbone.name,
        "weights": record["weights"],
        "config": predictor.config,
        "held_out_environment": options.held_out,
        "images": {"train": record["train_images"], "val": record["validation_images"], "held_out": held_out},
        "precision": record["precision"],
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine(),
        "torch": torch.__version__,
        "workers": workers,
        "seconds": record["seconds"],
        "images_per_second": round(record["train_images"] * len(epochs) / epochs[-1]["seconds"], 1),
        "chance": round(1 / len(predictor.classes), 4),
        "chosen_epoch": epochs[best],
        "last_epoch": epochs[-1],
        "epochs": epochs,
    }
    text = json.dumps(result, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--algorithm", default="erm", choices=algorithm_names())
    parser.add_argument("--vision", default="resnet18")
    parser.add_argument("--vision-weights")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of training; the epoch is finished")
    parser.add_argument("--held-out", default="sketch")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="an option of the algorithm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
