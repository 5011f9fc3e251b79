"""Images per second through mini's image tower, alone and from JPEG files to features, against the first mini's.

    python -m speed.tower [--threads 1 2] [--clock processor] [--folder PACS_FOLDER]
    python -m speed.tower --device cuda --batch-size 256 --images 4096 [--alone]

Needs no data: without a folder it makes JPEG files of 160 × 160 pixels. The first mini is no longer part of the
package; its ResNet (width 32, 128 px) is built with random weights, which take the same time. On a CPU every thread
takes a batch of 16 of its own, as feature extraction does; "together" is one batch that all threads work on. Rivals
take turns. bfloat16 is measured where the processor has it, plain open_clip where that is installed. With --alone
nothing is read from files, and torch, NumPy and safetensors are enough.
"""

import argparse
import importlib.util
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayescal.backbones import Backbone, load_backbone, mini
from bayescal.backbones.base import BFLOAT16, Frozen
from bayescal.backbones.loading import has_bfloat16
from bayescal.features.threads import in_parallel, worker_threads
from speed.first_mini import SIDE, FirstMini
from speed.measure import (
    CLOCKS,
    Clock,
    Result,
    interleaved,
    make_record,
    medians,
    print_results,
    processor,
    spread,
    write_json,
)

RESULTS = Path(__file__).parent / "results"
CPU_BATCH, JPEG_SIDE = 16, 160


def rivals(device: str) -> dict[str, Backbone]:
    """Towers by name, each as a backbone, so that all go through the same code."""
    ours = load_backbone("mini", device)
    found = {"first mini": _with_tower(ours, FirstMini(), SIDE, "1" * 20)}
    if importlib.util.find_spec("open_clip") is not None:
        from open_clip.model import CLIP

        plain = CLIP(**mini.config())
        plain.load_state_dict(mini.read())
        found["mini 2, plain open_clip"] = _with_tower(ours, plain.visual, ours.preprocess.size, "2" * 20)
    found["mini 2"] = ours
    if has_bfloat16(ours.device):
        found["mini 2, bfloat16"] = ours.in_precision(BFLOAT16)
    return found


def _with_tower(backbone: Backbone, tower: torch.nn.Module, side: int, fingerprint: str) -> Backbone:
    return replace(
        backbone,
        visual=Frozen(tower).to(backbone.device),
        preprocess=replace(backbone.preprocess, size=side),
        fingerprint=fingerprint,  # features of one are not taken for those of another
    )


def alone(backbone: Backbone, threads: int, batch: int, batches: int) -> Callable[[], None]:
    """Encode pixels that are there already: every thread batches of its own."""
    side = backbone.preprocess.size
    pixels = torch.randn(batch, 3, side, side, device=backbone.device)

    def work() -> None:
        if backbone.device.type == "cuda":
            for _ in range(batches):
                backbone.encode_images(pixels)
            torch.cuda.synchronize(backbone.device)
            return
        with worker_threads(threads) as pool:
            for _ in in_parallel(pool, lambda _: backbone.encode_images(pixels), range(batches), threads):
                pass

    return work


def together(backbone: Backbone, threads: int, batch: int) -> Callable[[], None]:
    """Encode one batch with all threads."""
    side = backbone.preprocess.size
    pixels = torch.randn(batch, 3, side, side)

    def work() -> None:
        torch.set_num_threads(threads)
        backbone.encode_images(pixels)

    return work


def from_files(backbone: Backbone, paths: list[str], threads: int | None, batch: int) -> Callable[[], None]:
    """From files to features in a fresh cache."""
    from bayescal.features import FeatureBank

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="bayescal-speed-") as cache:
            bank = FeatureBank(backbone, cache or "auto", workers=threads, batch_size=batch)
            if bank.encode(paths).computed != len(paths):
                raise AssertionError("not every image was encoded once")

    return work


def make_images(folder: Path, count: int) -> list[str]:
    """JPEG files with smooth noise, which take about as long to decode as photos; no two alike."""
    from PIL import Image, ImageFilter

    numbers = np.random.default_rng(0)
    paths = []
    for i in range(count):
        noise = numbers.integers(0, 256, (JPEG_SIDE, JPEG_SIDE, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2)).save(stream, "JPEG", quality=90)
        path = folder / f"{i}.jpg"
        path.write_bytes(stream.getvalue())
        paths.append(str(path))
    return paths


@contextmanager
def images(folder: Path | None, count: int) -> Iterator[list[str]]:
    """Paths of that many images, of a folder or made for the purpose."""
    if folder is not None:
        from bayescal.data.file_tree import find_images

        yield sorted(map(str, find_images(folder)))[:count]
        return
    with tempfile.TemporaryDirectory(prefix="bayescal-images-") as made:
        yield make_images(Path(made), count)


def measure(
    towers: dict[str, Backbone],
    threads: int | None,
    paths: list[str],
    count: int,
    batch: int,
    repeats: int,
    clock: Clock,
) -> list[Result]:
    """Images per second of each tower, by itself and from files if there are any; the first mini is what each is
    compared with."""
    on_cpu = next(iter(towers.values())).device.type == "cpu"
    n = threads or 1
    batches = max(count // batch, n)
    kinds = {"tower alone": {name: alone(tower, n, batch, batches) for name, tower in towers.items()}}
    if paths:
        kinds["from JPEG files"] = {name: from_files(tower, paths, threads, batch) for name, tower in towers.items()}
    if on_cpu and n > 1:
        kinds["tower alone, together"] = {name: together(tower, n, 64) for name, tower in towers.items()}
    encoded = {"tower alone": batch * batches, "from JPEG files": len(paths), "tower alone, together": 64}
    results = []
    for kind, functions in kinds.items():
        times = interleaved(functions, repeats, clock=clock)
        # Processor time is summed over threads; what they would take side by side is its share of each.
        share = n if on_cpu and clock is CLOCKS["processor"] else 1
        rates = {name: share * encoded[kind] / seconds for name, seconds in medians(times).items()}
        said = f"{kind}, {n} thread{'s' if n > 1 else ''}" if on_cpu else kind
        for name, rate in rates.items():
            notes = {"of the first mini": rate / rates["first mini"], **spread({name: times[name]})}
            results.append(Result(f"{said}: {name}", rate, unit="images/s", notes=notes))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of images, instead of those that are made")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a machine that others use")
    parser.add_argument("--alone", action="store_true", help="the towers alone, nothing from files")
    parser.add_argument("--json", action="store_true", help="print what is written as well, instead of a table")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    on_cpu, load = arguments.device == "cpu", os.getloadavg()[0]
    batch = CPU_BATCH if on_cpu else arguments.batch_size
    towers = rivals(arguments.device)
    with nullcontext([]) if arguments.alone else images(arguments.folder, arguments.images) as paths:
        results = [
            result
            for threads in (arguments.threads if on_cpu else [None])
            for result in measure(
                towers, threads, paths, arguments.images, batch, arguments.repeats, CLOCKS[arguments.clock]
            )
        ]
    kind = arguments.device.split(":")[0]
    about = {"processor": processor()} if on_cpu else {"gpu": torch.cuda.get_device_name(arguments.device)}
    command = f"python -m speed.tower --device {kind} --images {arguments.images} --repeats {arguments.repeats}"
    command += f" --clock {arguments.clock}" if on_cpu else f" --batch-size {batch}"
    command += " --alone" if arguments.alone else ""
    about |= {"load": round(load, 1)}
    if arguments.json:
        print(json.dumps(make_record(results, command, **about), ensure_ascii=False, indent=1))
    else:
        print_results(results, title=f"images per second, {arguments.device}")
    write_json(results, arguments.output or RESULTS / f"tower-{kind}.json", command, **about)


if __name__ == "__main__":
    main()
