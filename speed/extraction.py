"""Where the time of feature extraction goes: what one core decodes, and how busy the model is.

    python -m speed.extraction PACS_FOLDER [--backbone mini] [--images 640] [--device cuda]
    python -m speed.extraction PACS_FOLDER --backbone random --copies 4 --images 20000 --device cuda

On a CPU every thread decodes and encodes; the share is the time inside `Backbone.encode_images`, over all threads, of
threads × wall time. On CUDA processes decode and one thread feeds the GPU; its share comes from CUDA events around
every call, and the cores it needs are its images per second over what one core decodes. The time is from the first hash
of a file to the last feature read back, the start of the processes included. The cache is a fresh, temporary folder.

`--backbone random` is CLIP RN50 with random weights. `--copies` makes more images of few: each several times, with
another byte behind its end, which changes the hash and not the picture.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones import load_backbone
from bayescal.backbones.base import Backbone
from bayescal.benchmark.prepared import portable_name
from bayescal.data import content_hash, read_image
from bayescal.data.file_tree import find_images
from bayescal.data.transforms import cropped, plain_pixels
from bayescal.features import FeatureBank
from speed.measure import Result, print_results, write_json
from speed.reference import random_clip

RESULTS = Path(__file__).parent / "results"
CPU_TARGET, GPU_TARGET = 0.90, 0.70
MODEL_BATCH, REPEATS = 16, 3


class Watched(Backbone):
    """A backbone that notes the seconds inside `encode_images`: by clock, or on CUDA by events."""

    @classmethod
    def of(cls, backbone: Backbone) -> "Watched":
        watched = cls(**{part.name: getattr(backbone, part.name) for part in fields(backbone)})
        object.__setattr__(watched, "seconds", [])
        object.__setattr__(watched, "events", [])
        return watched

    def encode_images(self, pixels: Tensor) -> Tensor:
        started = time.perf_counter()
        if self.device.type != "cuda":
            features = super().encode_images(pixels)
            self.seconds.append(time.perf_counter() - started)
            return features
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        features = super().encode_images(pixels)
        end.record()
        self.events.append((begin, end))
        return features

    def busy(self) -> float:
        """Seconds inside the model, summed over threads."""
        if self.events:
            torch.cuda.synchronize(self.device)
        return sum(self.seconds) + sum(begin.elapsed_time(end) / 1000 for begin, end in self.events)


def seconds_per_image(work: Callable[[Any], Any], items: Sequence[Any]) -> float:
    """Processor time of one core, the median of some passes: other programs on the machine disturb it least."""
    work(items[0])
    passes = []
    for _ in range(REPEATS):
        started = time.process_time()
        for item in items:
            work(item)
        passes.append((time.process_time() - started) / len(items))
    return statistics.median(passes)


def one_core(backbone: Backbone, paths: Sequence[str]) -> dict[str, float]:
    """Seconds of each step for one image on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pictures = [read_image(path) for path in paths]
    found = {
        "hash": seconds_per_image(content_hash, paths),
        "decode": seconds_per_image(read_image, paths),
        "resize": seconds_per_image(lambda image: np.asarray(cropped(image, backbone.preprocess)), pictures),
    }
    if backbone.device.type == "cpu":
        batch = [plain_pixels(image, backbone.preprocess) for image in pictures[:MODEL_BATCH]]
        pixels = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
        found["model"] = seconds_per_image(backbone.encode_images, [pixels]) / len(batch)
    torch.set_num_threads(threads)
    return found


def gpu_rate(backbone: Backbone, batch: int, calls: int = 20) -> float:
    """Images per second of the model alone, on pixels that are on the GPU already."""
    pixels = torch.zeros(batch, 3, backbone.preprocess.size, backbone.preprocess.size, device=backbone.device)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    for _ in range(3):
        backbone.encode_images(pixels)
    torch.cuda.synchronize(backbone.device)
    started = time.perf_counter()
    for _ in range(calls):
        backbone.encode_images(pixels)
    torch.cuda.synchronize(backbone.device)
    return batch * calls / (time.perf_counter() - started)


def extract(backbone: Backbone, paths: Sequence[str], workers: int | None, batch_size: int) -> dict[str, float]:
    """Features of all images from an empty cache."""
    watched = Watched.of(backbone)
    with tempfile.TemporaryDirectory(prefix="bayescal-bench-") as folder:
        bank = FeatureBank(watched, folder, workers=workers, batch_size=batch_size)
        started = time.perf_counter()
        encoded = bank.encode(paths)
        wall = time.perf_counter() - started
    if encoded.failures or encoded.computed != len(set(encoded.hashes)):
        raise AssertionError("not every image was encoded once")
    busy_of = 1 if backbone.device.type == "cuda" else bank.workers
    return {
        "workers": bank.workers,
        "wall seconds": wall,
        "images per second": encoded.computed / wall,
        "share inside the model": watched.busy() / (busy_of * wall),
    }


def run(
    folder: Path, backbone: Backbone, images: int, workers: int | None = None, batch_size: int = 64
) -> list[Result]:
    paths = sorted(map(str, find_images(folder)))
    random.Random(0).shuffle(paths)
    paths = paths[:images]
    extract(backbone, paths[: images // 8], workers, batch_size)  # the first calls of a model are slower
    found = extract(backbone, paths, workers, batch_size)
    steps = one_core(backbone, paths[:200])
    fed = 1 / (steps["hash"] + steps["decode"] + steps["resize"])
    share = found["share inside the model"]
    on_gpu = backbone.device.type == "cuda"
    free = Result(
        f"{portable_name(backbone.name)}, {found['workers']} workers: {'GPU idle' if on_gpu else 'outside the model'}",
        100 * (1 - share),
        target=100 * (1 - (GPU_TARGET if on_gpu else CPU_TARGET)),
        unit="%",
        notes=found,
    )
    results = [Result("one core decodes and resizes, per image", 1 / fed, notes={**steps, "images per second": fed})]
    if on_gpu:
        rate = gpu_rate(backbone, batch_size)
        notes = {"images per second of the model alone": rate}
        return [*results, free, Result("cores that feed the GPU", rate / fed, unit="cores", notes=notes)]
    return [*results, Result("one core encodes, per image", steps["model"]), free]


def copied(folder: Path, copies: int, to: Path) -> Path:
    """A folder with distinct copies of all images."""
    for number, path in enumerate(find_images(folder)):
        content = path.read_bytes()
        for copy in range(copies):
            (to / f"{number}-{copy}{path.suffix}").write_bytes(content + bytes([copy]))
    return to


def random_backbone(folder: Path) -> Backbone:
    """CLIP RN50 with random weights, loaded as any other."""
    model, _ = random_clip()
    torch.save(model.state_dict(), folder / "random.pt")
    return load_backbone(f"RN50-quickgelu:{folder / 'random.pt'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--workers", type=int, help="threads; by default one per core")
    parser.add_argument("--batch-size", type=int, default=64, help="images per call of the model on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--copies", type=int, default=1, help="distinct copies of every image, up to 256")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bayescal-images-") as made:
        plain = arguments.backbone != "random"
        backbone = load_backbone(arguments.backbone) if plain else random_backbone(Path(made))
        several = arguments.copies > 1
        folder = copied(arguments.folder, arguments.copies, Path(made)) if several else arguments.folder
        sizes = arguments.images, arguments.workers, arguments.batch_size
        results = run(folder, backbone.to(arguments.device), *sizes)
    print_results(results, title=f"features from JPEG files, {arguments.device}")
    for result in results:
        print(result.what, {key: round(value, 5) for key, value in result.notes.items()})
    command = f"python -m speed.extraction {arguments.folder.name} --backbone {portable_name(arguments.backbone)}"
    command += f" --images {arguments.images} --device {arguments.device} --batch-size {arguments.batch_size}"
    command += f" --copies {arguments.copies}" if several else ""
    output = arguments.output or RESULTS / f"extraction-{arguments.device.split(':')[0]}.json"
    about = {"gpu": torch.cuda.get_device_name(arguments.device)} if arguments.device.startswith("cuda") else {}
    write_json(results, output, command, load=round(load, 1), **about)


if __name__ == "__main__":
    main()
