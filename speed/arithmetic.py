"""Faster arithmetic for mini's image tower: what it wins, and what it moves.

    python -m speed.arithmetic SET [SET …] [--onnx] [--images 2000] [--threads 1 2] [--clock processor] [--device cpu]

Each SET is a folder ENVIRONMENT/CLASS/image. Every arithmetic encodes the same pixels as float32 does; shown are images
per second in the tower (every thread has batches of 16 of its own, as in feature extraction), the smallest and the mean
cosine to float32, and by how many points zero-shot and the card's logistic regression move on each set. An arithmetic
may become the default with cosines of at least 0.999 and no set moved by more than 0.2 points. On a processor without
instructions for bfloat16 its numbers are float32 and rounded: what it moves is measured, its speed is not.

--onnx also measures onnxruntime in float32 and in int8, dynamic and static (calibrated on images not measured on).
It needs the packages onnx, onnxscript and onnxruntime, which nothing else here does: install them somewhere else, and
put that folder on PYTHONPATH.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from bayescal.backbones import Backbone, load_backbone
from bayescal.backbones.base import BFLOAT16
from bayescal.backbones.loading import has_bfloat16
from bayescal.data import Manifest, read_manifest
from bayescal.data.images import read_image
from bayescal.data.transforms import cropped, normalised
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.features.threads import in_parallel, usable_cores, worker_threads
from speed.card import SEEDS, TEMPLATE, held_out_accuracy
from speed.measure import CLOCKS, Clock, Result, interleaved, medians, print_results, processor, spread, write_json

RESULTS = Path(__file__).parent / "results"
BATCH, CALIBRATION = 16, 256
FIRST = "float32"
ROUNDED = "bfloat16 (rounded here)"  # says what bfloat16 moves, not how fast it is
COSINE, POINTS = 0.999, 0.2  # what a default has to keep

Encode = Callable[[torch.Tensor], torch.Tensor]  # pixels (B, 3, side, side) → features (B, D), in the calling thread


@dataclass(frozen=True)
class Images:
    """Some images of a set, drawn at random, as pixels."""

    name: str
    manifest: Manifest
    hashes: list[str | None]
    pixels: np.ndarray  # (N, side, side, 3) uint8

    def batches(self, backbone: Backbone, size: int = BATCH) -> list[torch.Tensor]:
        return [
            torch.from_numpy(normalised(self.pixels[at : at + size], backbone.preprocess)).permute(0, 3, 1, 2)
            for at in range(0, len(self.pixels), size)
        ]


def draw(folder: Path, count: int, backbone: Backbone) -> tuple[Images, np.ndarray]:
    """Images to measure on, and pixels of some others (as many as calibration may take from this set)."""
    manifest = read_manifest(folder)
    order = np.random.default_rng(0).permutation(len(manifest))
    chosen = np.sort(order[: min(count, len(manifest) - CALIBRATION // 4)])
    kept = manifest.select(chosen)
    others = manifest.select(order[-CALIBRATION // 4 :])
    pixels, calibration = (_pixels(part, backbone) for part in (kept, others))
    return Images(folder.name, kept, ContentIndex.of(kept.paths, workers=1).hexes(), pixels), calibration


def _pixels(manifest: Manifest, backbone: Backbone) -> np.ndarray:
    def read(path: str) -> np.ndarray:
        return np.asarray(cropped(read_image(path), backbone.preprocess))

    with worker_threads(usable_cores()) as pool:
        return np.stack(list(pool.map(read, manifest.paths)))


class Rounding(TorchDispatchMode):
    """Every operation on numbers rounded to bfloat16, its result rounded again: what processors with bfloat16 give, on
    one without, where bfloat16 itself takes seven times as long as float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, _rounded, (args, kwargs))
        return tree_map_only(torch.Tensor, _rounded, func(*args, **kwargs))


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.bfloat16().float() if value.dtype == torch.float32 else value


def rounding(backbone: Backbone) -> Encode:
    def encode_images(pixels: torch.Tensor) -> torch.Tensor:
        with Rounding():
            return backbone.encode_images(pixels)

    torch.backends.mha.set_fastpath_enabled(False)  # attention as several operations, as it is in bfloat16
    return encode_images


def torch_arithmetics(backbone: Backbone) -> dict[str, Encode]:
    if has_bfloat16(backbone.device):
        return {FIRST: backbone.encode_images, "bfloat16": backbone.in_precision(BFLOAT16).encode_images}
    return {FIRST: backbone.encode_images, ROUNDED: rounding(backbone)}


def onnx_arithmetics(backbone: Backbone, calibration: torch.Tensor, folder: Path) -> dict[str, Encode]:
    """The tower in onnxruntime: float32; int8 with ranges taken from each batch; int8 with ranges found before."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(calibration.split(BATCH))

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"pixels": batch.contiguous().numpy()}

    side = backbone.preprocess.size
    plain, ready = folder / "float32.onnx", folder / "prepared.onnx"
    example = torch.zeros(2, 3, side, side)
    dynamic = {"pixels": {0: torch.export.Dim("batch", min=1, max=1024)}}
    visual = backbone.visual.inner
    torch.onnx.export(
        visual, (example,), str(plain), input_names=["pixels"], output_names=["features"], dynamo=True,
        dynamic_shapes=({0: dynamic["pixels"][0]},), external_data=False,
    )  # fmt: skip
    quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
    # Products with weights alone: those of attention are small and would lose most. Without VNNI, sums of 8-bit
    # products overflow unless weights have 7 bits.
    common = {
        "per_channel": True,
        "reduce_range": not _has_vnni(),
        "weight_type": QuantType.QInt8,
        "op_types_to_quantize": ["MatMul", "Gemm"],
        "extra_options": {"MatMulConstBOnly": True},
    }
    quantize_dynamic(str(ready), str(folder / "int8 dynamic.onnx"), **common)
    for name, method in (("static", CalibrationMethod.MinMax), ("static, percentile", CalibrationMethod.Percentile)):
        extra = {**common["extra_options"], "CalibPercentile": 99.99}
        quantize_static(
            str(ready), str(folder / f"int8 {name}.onnx"), Reader(), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8, calibrate_method=method, **{**common, "extra_options": extra},
        )  # fmt: skip
    names = {
        "float32": plain,
        **{n: folder / f"{n}.onnx" for n in ("int8 dynamic", "int8 static", "int8 static, percentile")},
    }
    return {f"onnxruntime, {name}": _session(path) for name, path in names.items()}


def _session(path: Path) -> Encode:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # every thread of ours runs a batch of its own
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(None, {"pixels": pixels.contiguous().numpy()})[0])


def _has_vnni() -> bool:
    about = Path("/proc/cpuinfo")
    return about.exists() and "vnni" in about.read_text()


def encode(function: Encode, batches: Sequence[torch.Tensor]) -> np.ndarray:
    """Features of norm 1, on all cores."""
    threads = usable_cores()
    found: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        found[i] = F.normalize(function(batches[i]).float().cpu(), dim=-1)

    with worker_threads(threads) as pool:
        for _ in in_parallel(pool, work, range(len(batches)), threads):
            pass
    return torch.cat([found[i] for i in range(len(batches))]).numpy()


def accuracies(images: Images, features: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """Zero-shot, and the card's logistic regression (means over held-out environments and seeds), in percent."""
    from joblib import Parallel, delayed

    manifest = images.manifest
    zero_shot = ((features @ texts.T).argmax(1) == manifest.class_ids).mean()
    held_out = [(e, seed) for e in range(len(manifest.environments)) for seed in SEEDS]
    jobs = [delayed(held_out_accuracy)(manifest, features, images.hashes, *which) for which in held_out]
    found = Parallel(n_jobs=usable_cores())(jobs)
    return {"zero-shot": 100 * float(zero_shot), "regression": 100 * float(np.mean(found))}


def speeds(
    arithmetics: dict[str, Encode], pixels: torch.Tensor, threads: int, repeats: int, clock: Clock
) -> list[Result]:
    """Images per second of each, side by side."""
    batches = 4 * threads

    def run(function: Encode) -> Callable[[], None]:
        def work() -> None:
            with worker_threads(threads) as pool:
                for _ in in_parallel(pool, lambda _: function(pixels), range(batches), threads):
                    pass

        return work

    times = interleaved({name: run(function) for name, function in arithmetics.items()}, repeats, clock=clock)
    share = threads if clock is CLOCKS["processor"] else 1  # processor time is summed over threads
    said = f"{threads} thread{'s' if threads > 1 else ''}"
    return [
        Result(
            f"{said}: {name}",
            share * batches * len(pixels) / seconds,
            unit="images/s",
            notes=spread({name: times[name]}),
        )
        for name, seconds in medians(times).items()
    ]


def measured_on(arithmetics: dict[str, Encode], sets: Sequence[Images], backbone: Backbone) -> list[Result]:
    """What each arithmetic moves on each set, against the first."""
    results, first, plain = [], {}, {}
    for images in sets:
        words = [TEMPLATE.format(word) for word in images.manifest.class_words]
        texts = F.normalize(backbone.encode_texts(words), dim=-1).cpu().numpy()
        batches = images.batches(backbone, BATCH if backbone.device.type == "cpu" else 256)
        for name, function in arithmetics.items():
            started = time.perf_counter()
            if name == FIRST:  # kept in the usual cache, so that another run, or speed.card, has them
                features = F.normalize(FeatureBank(backbone).encode(images.manifest.paths).features, dim=-1).numpy()
            else:
                features = encode(function, batches)
            found = accuracies(images, features, texts)
            reference = first.setdefault(images.name, features)
            before = plain.setdefault(images.name, found)
            cosines = (features * reference).sum(1)
            moved = {f"{what}, points": round(found[what] - before[what], 3) for what in found}
            notes = {
                "smallest cosine": float(cosines.min()),
                "mean cosine": float(cosines.mean()),
                **{what: round(value, 2) for what, value in found.items()},
                **moved,
                "kept": bool(cosines.min() >= COSINE and all(abs(value) <= POINTS for value in moved.values())),
                "images": len(features),
            }
            results.append(Result(f"{images.name}: {name}", time.perf_counter() - started, notes=notes))
            print(results[-1].what, notes, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--onnx", action="store_true", help="measure onnxruntime too; see above what it needs")
    parser.add_argument("--images", type=int, default=2000, help="of each set, at most")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="of the speeds; none: no speeds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="parts of the names of arithmetics, beside float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a machine that others use")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    backbone = load_backbone("mini", arguments.device)
    drawn = [draw(folder, arguments.images, backbone) for folder in arguments.sets]
    calibration = np.concatenate([pixels for _, pixels in drawn])[:: max(1, len(drawn) // 4)][:CALIBRATION]
    prepared = torch.from_numpy(normalised(calibration, backbone.preprocess)).permute(0, 3, 1, 2)
    arithmetics = torch_arithmetics(backbone)
    with tempfile.TemporaryDirectory(prefix="bayescal-onnx-") as folder:
        if arguments.onnx:
            arithmetics |= onnx_arithmetics(backbone, prepared, Path(folder))
        if arguments.only:
            arithmetics = {n: f for n, f in arithmetics.items() if n == FIRST or any(w in n for w in arguments.only)}
        results = []
        timed = {name: function for name, function in arithmetics.items() if name != ROUNDED}
        for threads in arguments.threads if arguments.device == "cpu" else []:
            results += speeds(timed, prepared[:BATCH], threads, arguments.repeats, CLOCKS[arguments.clock])
        print_results(results, title="images per second in the tower")
        results += measured_on(arithmetics, [images for images, _ in drawn], backbone)
    sets = " ".join(images.name for images, _ in drawn)
    command = f"python -m speed.arithmetic {sets} --images {arguments.images} --clock {arguments.clock}"
    command += " --onnx" if arguments.onnx else ""
    output = arguments.output or RESULTS / f"arithmetic-{arguments.device.split(':')[0]}.json"
    write_json(results, output, command, load=round(load, 1), processor=processor(), fingerprint=backbone.fingerprint)


if __name__ == "__main__":
    main()
