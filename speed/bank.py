"""A bank of a million images, with generated features: streamed, killed, resumed by two writers, read by few rows.

    python -m speed.bank [--images 1000000] [--dim 512] [--folder FOLDER]

Features are a function of the image's number, so what is read can be checked. Each part runs in a process of its own;
memory is its peak above what Python, the imports and the list of hashes take. Needs Linux, and disk space for 1.02 ×
the features in FOLDER, given back at the end.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from speed.measure import ROOT, Result, print_results, write_json

RESULTS = Path(__file__).parent / "results" / "bank-cpu.json"
BLOCK, READ, CLASSES, ENVIRONMENTS = 64, 10_000, 1000, 6
MEMORY_TARGET = 256  # MB, whatever the features weigh
ABOUT = {"fingerprint": "generated", "transform": "plain-1"}


# --- generated images: block b holds images 64 b … 64 b + 63 ---------------------------------------------------------


def digests(images: int) -> np.ndarray:
    """Content hashes: (N, 32) uint8."""
    parts = [np.random.default_rng([block, 0]).bytes(32 * BLOCK) for block in range(-(-images // BLOCK))]
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(-1, 32)[:images]


def features(block: int, dim: int) -> np.ndarray:
    """Features of a block: (64, D) float32."""
    return np.random.default_rng([block, 1]).random((BLOCK, dim), dtype=np.float32)


def bank_rows(folder: Path, images: np.ndarray, all_digests: np.ndarray, dim: int, computing: bool) -> Any:
    """Generated images as a `FeatureRows`, which stores what is missing; not `computing`: nothing may be missing."""
    from bayescal.features.content_index import ContentIndex
    from bayescal.features.decode import ImageRequest, Rows
    from bayescal.features.feature_rows import FeatureRows
    from bayescal.features.store import RowStore

    def compute(wanted: Iterable[ImageRequest], total: int) -> Iterator[Rows]:
        if total and not computing:
            raise AssertionError(f"{total} rows are not in the bank")
        for block, group in itertools.groupby(wanted, key=lambda image: image.source // BLOCK):
            some = tuple(group)
            values = features(block, dim)[[image.source % BLOCK for image in some]]
            yield Rows(some, (0,) * len(some), values, {})

    contents = ContentIndex(all_digests[images], np.arange(len(images)), {})
    return FeatureRows(images.tolist(), contents, None, RowStore(folder, dim, ABOUT), compute, "generated")


# --- the parts, each in a process of its own -------------------------------------------------------------------------


def write_part(folder: Path, images: int, dim: int, share: int, shares: int) -> dict[str, Any]:
    """Write what is missing of every `shares`-th block from `share` on, a block at a time, as extraction does."""
    all_digests, ids = digests(images), np.arange(images)
    with Watch() as watch:
        rows = bank_rows(folder, ids[ids // BLOCK % shares == share], all_digests, dim, computing=True)
    return {"written": rows.computed, **watch.found}


def read_part(folder: Path, images: int, dim: int) -> dict[str, Any]:
    """Open the bank, look for every image, then read a few rows, from the disk and again."""
    from bayescal.features.store import RowStore, keys_of

    all_digests, ids = digests(images), np.arange(images)
    with Watch() as opened:
        RowStore(folder, dim, ABOUT).has(keys_of(all_digests[:1], [0]))
    with Watch() as found:
        rows = bank_rows(folder, ids, all_digests, dim, computing=False)
    chosen = np.random.default_rng(0).choice(images, min(READ, images), replace=False)
    for path in folder.glob("*.rows"):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with Watch() as cold:
        values = rows.read(chosen)
    with Watch() as warm:
        rows.read(chosen)
    for i, row in zip(chosen.tolist(), values.numpy(), strict=True):
        if not np.array_equal(row, features(i // BLOCK, dim)[i % BLOCK]):
            raise AssertionError(f"row {i} is not what was written")
    parts = {"open": opened, "find": found, "cold": cold, "warm": warm}
    return {"rows": len(chosen), **{name: watch.found for name, watch in parts.items()}}


def draws_part(folder: Path, images: int, dim: int) -> dict[str, Any]:
    """Training, validation and test images of one fold and seed, of a list of images without files."""
    from bayescal.benchmark.splits import draw_splits
    from bayescal.data.datasets.base import describe
    from bayescal.data.manifest import Manifest
    from bayescal.data.splits import Hashes
    from bayescal.features.extract import hex_of

    ids = np.arange(images)
    classes, environments = ids % CLASSES, (ids // CLASSES) % ENVIRONMENTS
    with Watch() as listed:
        manifest = Manifest.from_columns(
            [f"{i:07}.jpg" for i in ids], [f"c{c}" for c in classes], [f"e{e}" for e in environments]
        )
    hashes = hex_of(digests(images), ())
    dataset = describe(folder, manifest)
    fold = dataset.folds(manifest)[0]
    with Watch() as numbered:
        hashes = Hashes.of(hashes)
    with Watch() as drawn:
        splits = draw_splits(dataset, manifest, hashes, fold, 1, 16, 16)
    found = {"manifest": listed, "hashes": numbered, "draw": drawn}
    return {"training images": len(splits.train), **{name: watch.found for name, watch in found.items()}}


PARTS = {"write": write_part, "read": read_part, "draws": draws_part}


class Watch:
    """Seconds, processor seconds, peak of memory above its start (MB), and MB that came from the disk."""

    def __enter__(self) -> "Watch":
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._start = (time.perf_counter(), time.process_time(), status("VmRSS"), _from_disk())
        return self

    def __exit__(self, *error: object) -> None:
        wall, busy, memory, disk = self._start
        self.found = {
            "seconds": time.perf_counter() - wall,
            "processor seconds": time.process_time() - busy,
            "memory MB": (status("VmHWM") - memory) / 1e6,
            "disk MB": (_from_disk() - disk) / 1e6,
        }


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


# --- all of it -------------------------------------------------------------------------------------------------------


def run(images: int, dim: int, folder: Path) -> list[Result]:
    bank, row = folder / "bank", 4 * dim
    killed = _start("write", images, dim, bank, 0, 1)
    while killed.poll() is None and _size(bank, "keys") < 40 * (images // 2):
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    if killed.returncode != -signal.SIGKILL:
        raise AssertionError("the writer ended before it could be killed")
    kept, begun = _size(bank, "keys") // 40, -(-_size(bank, "rows") // row)
    writers = [_result(process) for process in [_start("write", images, dim, bank, share, 2) for share in (0, 1)]]
    written = [writer["written"] for writer in writers]
    if kept + sum(written) != images:
        raise AssertionError(f"{kept} rows before the kill and {written} after it are not {images}")
    read, drawn = (_result(_start(name, images, dim, bank)) for name in ("read", "draws"))
    size = sum(path.stat().st_size for path in bank.iterdir())
    busy = "processor seconds"
    return [
        Result(f"bank of {images:,} × {dim}: on disk / raw features", size / (row * images), target=1.2, unit="×"),
        Result("    killed half-way: rows lost", begun - kept, target=BLOCK, unit="rows", notes={"kept": kept}),
        Result("    resumed by two writers: memory of one", max(writer["memory MB"] for writer in writers),
               target=MEMORY_TARGET, unit="MB", notes={"writers": writers}),
        Result("    index all keys of the folder", read["open"][busy], target=5, notes=read["open"]),
        Result(f"    find {images:,} images", read["find"][busy], target=10, notes=read["find"]),
        Result("        memory", read["find"]["memory MB"], target=MEMORY_TARGET, unit="MB"),
        Result(f"    read {read['rows']:,} random rows", read["cold"][busy], target=5, notes=read["cold"]),
        Result("        memory", read["cold"]["memory MB"], target=MEMORY_TARGET, unit="MB"),
        Result("        bytes from the disk", read["cold"]["disk MB"], unit="MB", notes={"again": read["warm"]}),
        Result(f"sets of a fold and seed of {images:,} images", drawn["draw"][busy], target=10, notes=drawn),
    ]  # fmt: skip


def _size(bank: Path, suffix: str) -> int:
    return sum(path.stat().st_size for path in bank.glob(f"*.{suffix}"))


def _start(part: str, images: int, dim: int, bank: Path, *options: int) -> subprocess.Popen:
    arguments = ["--images", images, "--dim", dim, "--folder", bank, "--part", part, *options]
    command = [sys.executable, "-m", "speed.bank", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _result(process: subprocess.Popen) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a part ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument(
        "--folder", type=Path, help="where the bank is made, and removed again; else a temporary folder"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        import bayescal.benchmark.prepared  # noqa: F401  memory of the imports is not the bank's
        from bayescal.features import FeatureBank  # noqa: F401

        name, *options = arguments.part
        found = PARTS[name](arguments.folder, arguments.images, arguments.dim, *map(int, options))
        print(json.dumps(found))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bayescal-bank-", dir=arguments.folder) as folder:
        results = run(arguments.images, arguments.dim, Path(folder).resolve())
    print_results(results, title="generated features; times are processor time")
    command = f"python -m speed.bank --images {arguments.images} --dim {arguments.dim}"
    write_json(results, arguments.output, command, clock="processor", load=round(load, 1))


if __name__ == "__main__":
    main()
