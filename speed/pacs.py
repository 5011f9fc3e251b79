"""PACS with the embedded backbone: features of all images from an empty cache, and a fit on them.

    python -m speed.pacs PACS_FOLDER [--cache FOLDER]

Each part runs in a process of its own, so that its peak memory is its own. The cache is a temporary folder, thrown away
at the end, unless one is given; then features that are in it already are not computed again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from speed.measure import ROOT, Result, peak_memory, print_results

FEATURES_TARGET, FIT_TARGET, MEMORY_TARGET = 240.0, 20.0, 2.0
HELD_OUT, SHOTS = "sketch", 16


def features_part(folder: Path, cache: Path) -> dict[str, Any]:
    """Read, decode and encode every image."""
    from bayescal.backbones import load_backbone
    from bayescal.data import read_manifest
    from bayescal.features import FeatureBank

    paths = read_manifest(folder).paths
    backbone = load_backbone("mini")
    started = time.perf_counter()
    encoded = FeatureBank(backbone, cache or "auto").encode(paths, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "images": len(paths),
        "computed": encoded.computed,
        "images per second": encoded.computed / seconds,
        "unreadable": len(encoded.failures),
    }


def fit_part(folder: Path, cache: Path) -> dict[str, Any]:
    """16-shot Bayes-CAL as a user calls it, with one environment left out; then that environment as a test."""
    from bayescal import FewShotClassifier
    from bayescal.data import read_manifest

    rows = list(read_manifest(folder).rows())
    seen = [row for row in rows if row.environment != HELD_OUT]
    unseen = [row for row in rows if row.environment == HELD_OUT]
    classifier = FewShotClassifier("bayes-cal", "mini", shots=SHOTS, cache=cache)
    started = time.perf_counter()
    classifier.fit([r.path for r in seen], [r.class_name for r in seen], [r.environment for r in seen])
    seconds = time.perf_counter() - started
    record = classifier.record_
    return {
        "seconds": seconds,
        "epochs": len(next(iter(record["curves"].values()))),
        "training images": record["train_images"],
        "validation accuracy": record["validation_accuracy"],
        f"accuracy in {HELD_OUT}": classifier.score([r.path for r in unseen], [r.class_name for r in unseen]),
    }


PARTS = {"features": features_part, "fit": fit_part}


def in_fresh_process(part: str, folder: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "speed.pacs", str(folder), "--cache", str(cache), "--part", part]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def run(folder: Path, cache: Path | None = None) -> list[Result]:
    folder = folder.resolve()  # the parts run in the repository's root
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="bayescal-bench-") as temporary:
            return run(folder, Path(temporary))
    cache = cache.resolve()
    features = in_fresh_process("features", folder, cache)
    fit = in_fresh_process("fit", folder, cache)
    results = [
        Result(f"PACS, features of {features['images']:,} images, mini", features["seconds"], target=FEATURES_TARGET),
        Result("    peak memory of the features", features["peak GB"], target=MEMORY_TARGET, unit="GB"),
        Result(f"PACS, {SHOTS}-shot Bayes-CAL fit, {fit['epochs']} epochs", fit["seconds"], target=FIT_TARGET),
        Result("    peak memory of the fit", fit["peak GB"], target=MEMORY_TARGET, unit="GB"),
    ]
    for result, notes in zip(results, (features, {}, fit, {}), strict=True):
        result.notes.update(notes)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is None:
        print_results(run(arguments.folder, arguments.cache))
        return
    found = PARTS[arguments.part](arguments.folder, arguments.cache)
    print(json.dumps({**found, "peak GB": peak_memory()}))


if __name__ == "__main__":
    main()
