"""Whether exported models answer as the model does, in every precision.

    python -m speed.export SET [SET …] [--images 500]

Each SET is a folder ENVIRONMENT/CLASS/image. `auto` learns from 16 + 16 images per class of all environments but the
last, and is asked about images that it has not learned from, of all environments; 64 more of them set int8's scales.
Shown are the largest difference of a probability, the share of images with the same class, and the accuracies. Exit
code 1 where float32 differs by more than 1e-4, or another precision costs more than 0.5 points. What was found is in
speed/results/export-SET-cpu.json.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np

from bayescal import FewShotClassifier
from bayescal.data import Manifest, read_manifest
from bayescal.data.transforms import Transform
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.training_data import choose_training_data
from bayescal.export import export_model
from bayescal.export.check import CALIBRATION, Checked, Sample, TooCostly
from bayescal.export.folder import PRECISIONS
from bayescal.export.reading import MODEL
from bayescal.features.decode_process import fill
from speed.measure import Result, write_json

RESULTS = Path(__file__).parent / "results"
SHOTS, CLOSE, POINTS = 16, 1e-4, 0.5


def fitted(folder: Path, cache: Path | None) -> tuple[BasePredictor, Manifest]:
    """A model of the set, and the images that it has not learned from."""
    manifest = read_manifest(folder)
    training = choose_training_data(manifest, manifest.environments[-1:], SHOTS, SHOTS, 1)
    classifier = FewShotClassifier(shots=SHOTS, cache=cache).fit(training)
    learned = set(training.manifest.paths)
    others = np.array([i for i, path in enumerate(manifest.paths) if path not in learned])
    return classifier.predictor_, manifest.select(others)


def drawn(predictor: BasePredictor, manifest: Manifest, count: int) -> Sample:
    """So many images of the manifest, or all."""
    rows = np.sort(np.random.default_rng(0).permutation(len(manifest))[:count])
    side = predictor.backbone.preprocess.size
    pixels = np.empty((len(rows), side, side, 3), np.uint8)
    transform = Transform(predictor.backbone.preprocess)
    if problems := fill(pixels, [(manifest.paths[row], "", (0,)) for row in rows], transform):
        raise SystemExit(f"{len(problems)} images cannot be read: {next(iter(problems.values()))}")
    return Sample(pixels, predictor.class_ids(manifest.classes, manifest.class_ids[rows]).numpy())


def measured(name: str, predictor: BasePredictor, sample: Sample, count: int) -> list[Result]:
    """Every precision of one model."""
    results = []
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory(prefix="bayescal-speed-") as folder:
            path = Path(folder) / "exported"
            own = sample if precision == "int8" else Sample(sample.pixels[:count], sample.labels[:count])
            try:
                checked = export_model(predictor, path, precision, sample=own)
            except TooCostly as error:
                print(f"{name}, {precision}: {error}", flush=True)
                notes = {**error.checked.as_json(), "met": False, "refused": str(error)}
                results.append(Result(f"{name}, {precision}", error.checked.largest_difference, unit="", notes=notes))
                continue
            assert checked is not None
            size = (path / MODEL).stat().st_size / 1e6
        print(f"{name}, {precision}, {size:.0f} MB. {checked.sentence()}", flush=True)
        notes = {**checked.as_json(), "MB": round(size, 1), "met": met(precision, checked)}
        results.append(Result(f"{name}, {precision}", checked.largest_difference, unit="", notes=notes))
    return results


def met(precision: str, checked: Checked) -> bool:
    if precision == "float32":
        return checked.largest_difference <= CLOSE and checked.same_class == 1.0
    return 100 * (checked.accuracy - checked.accuracy_exported) <= POINTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--cache", type=Path, help="of features; by default the usual one")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the files, one of each set")
    arguments = parser.parse_args()
    met_all = True
    for folder in arguments.sets:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predictor, others = fitted(folder, arguments.cache)
        sample = drawn(predictor, others, arguments.images + CALIBRATION)
        results = measured(folder.name, predictor, sample, arguments.images)
        command = f"python -m speed.export {folder.name} --images {arguments.images}"
        write_json(results, arguments.output / f"export-{folder.name}-cpu.json", command)
        met_all = met_all and all(result.notes.get("met") for result in results)
    if not met_all:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
