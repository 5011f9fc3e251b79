"""`bayescal evaluate`."""

import csv
import io
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.cli.layout_options import ClassFromName, Columns, Data, Layout, read_data
from bayescal.cli.options import Cache, Device, Model, MovedBackbone, RawCsv
from bayescal.util.regular import read_file

if TYPE_CHECKING:
    from rich.console import Console

    from bayescal.data import Manifest
    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.estimator.evaluating import Evaluated
    from bayescal.evaluation.expected import ExpectedAccuracy
    from bayescal.evaluation.scoring import Evaluation

METRICS, PICTURE, MISTAKES = "metrics.json", "confusion-matrix.png", "mistakes.csv"
OURS = (METRICS, PICTURE, MISTAKES, "pictures.html", "mistakes.png")
MISTAKE_COLUMNS = ("path", "class", "said", "confidence", "environment", "unsure", "unfamiliar", "learned_from")
_MEANING = (
    ("accuracy", "accuracy", "share of images answered correctly"),
    ("worst_environment", "worst environment", "accuracy in the environment where it is lowest"),
    ("selective_accuracy", "Acc*", 'share of correct answers among those that are not "unsure"'),
    ("selective_accuracy_code", "Acc*(code)", "as the published code counts it; for comparison with papers only"),
    ("coverage", "coverage", 'share of images that are not "unsure"'),
    ("ece", "ECE", "how far confidence and accuracy differ on average; 0 is best"),
    ("brier", "Brier score", "squared error of the probabilities; 0 is best, 2 is worst"),
    ("nll", "NLL", "negative log-likelihood; 0 is best"),
)
_PERCENTAGES = ("accuracy", "worst_environment", "selective_accuracy", "selective_accuracy_code", "coverage")


def evaluate(
    model: Model,
    data: Data,
    leave_out: Annotated[
        list[str] | None, typer.Option(metavar="ENV", help="An environment to skip; may be repeated.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ENV", help="Only this environment; may be repeated.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="train, val, test or all. Default: test where DATA has such images, else all."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where metrics.json, mistakes.csv and the pictures go. Default: MODEL-evaluation, beside the model.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        bool | None,
        typer.Option(
            "--pictures/--no-pictures",
            help="Also a page and a sheet of mistakes, beside the training images most like them. Default: in a "
            "terminal.",
            show_default=False,
        ),
    ] = None,
    raw_csv: RawCsv = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json instead of tables.")] = False,
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "auto",
) -> None:
    """Measure a model on labelled images: how often it is right, where, and whether it knows when it is not.

    Environments that the model learned from are marked as seen; the others show how it holds up elsewhere.
    """
    from bayescal.cli.screen import emit, near, out
    from bayescal.data import Reading
    from bayescal.util.jsonable import dumps

    folder = Path(os.path.abspath(output or f"{os.path.abspath(model)}-evaluation"))
    _check_place(folder)
    chosen, part = _choose(
        read_data(data, Reading(layout, class_from_name, columns)), only or [], leave_out or [], split
    )
    predictor, evaluated = _measure(model, chosen, backbone, cache, device)
    _warn_about_training_images(predictor, evaluated, part)
    record = _record(predictor, evaluated, model=str(model), data=str(data), split=part)
    text = dumps(record, indent=2, ensure_ascii=False) + "\n"
    wanted = sys.stdout.isatty() and not as_json if pictures is None else pictures
    written = _write(folder, evaluated, text, f"{near(model)} on {near(data)}" if wanted else None, raw_csv)
    if as_json:
        emit(text)
        return
    screen = out()
    _print(screen, evaluated, part)
    if predictor.expected is not None:
        _print_expected(screen, predictor.expected, evaluated)
    _print_mistakes(screen, evaluated)
    screen.print(f"Written to {near(folder)}: {', '.join(written)}.", soft_wrap=True)


def _choose(manifest: "Manifest", only: list[str], leave_out: list[str], split: str | None) -> tuple["Manifest", str]:
    """The images to measure on, and the name of their split."""
    from bayescal.errors import BayescalError, DataError
    from bayescal.estimator.training_data import in_environments

    if split not in (None, "train", "val", "test", "all"):
        raise BayescalError(f"--split {split}: expected train, val, test or all")
    part = split or ("test" if (manifest.splits == "test").any() else "all")
    wanted = in_environments(manifest, only, "--only") if only else manifest.environment_ids >= 0
    wanted &= ~in_environments(manifest, leave_out, "--leave-out")
    if not wanted.any():
        raise DataError("--only and --leave-out together leave no environment")
    if part != "all":
        wanted &= manifest.splits == part
        if not wanted.any():
            raise DataError(f"no image has the split {part!r} here: choose another --split, or all")
    return manifest.select(wanted), part


def _measure(
    model: Path, manifest: "Manifest", backbone: str | None, cache: Path | None, device: str
) -> tuple["BasePredictor", "Evaluated"]:
    from bayescal.cli.options import taken_device
    from bayescal.cli.screen import shows_progress
    from bayescal.end_to_end import load_model
    from bayescal.estimator.evaluating import evaluate_images
    from bayescal.estimator.labelled_images import LabelledImages
    from bayescal.features import AUTO, FeatureBank

    predictor = load_model(model, backbone, taken_device(device))
    bank = FeatureBank(predictor.backbone, folder=cache or AUTO)
    return predictor, evaluate_images(predictor, bank, LabelledImages.from_manifest(manifest), shows_progress())


def _warn_about_training_images(predictor: "BasePredictor", evaluation: "Evaluated", part: str) -> None:
    """For a model made before version 0.2, which does not know its training images; the others have said so by now."""
    import warnings

    from bayescal.errors import BayescalWarning

    seen = any(environment.seen for environment in evaluation.environments)
    if predictor.training is None and seen and part in ("all", "train"):
        warnings.warn(
            "images of seen environments may be the ones that the model learned from; how good it is, only test images "
            "and unseen environments tell",
            BayescalWarning,
            stacklevel=2,
        )


def _record(predictor: "BasePredictor", evaluated: "Evaluated", **about: str) -> dict[str, Any]:
    """What metrics.json holds."""
    from bayescal import __version__

    return {
        **about,
        "version": __version__,
        "method": predictor.method_name,
        "backbone": predictor.backbone.name,
        **evaluated.to_json(),
        "expected": None if predictor.expected is None else asdict(predictor.expected),
        "members": predictor.record.get("members"),
    }


def _print_expected(screen: "Console", expected: "ExpectedAccuracy", evaluation: "Evaluation") -> None:
    """What was expected when the model was learned, beside what came out."""
    from bayescal.cli.screen import percent

    screen.print(f"Expected when it was learned: {expected.sentence()}", soft_wrap=True)
    unseen = [own for own in evaluation.environments if not own.seen]
    if unseen and expected.low is not None and expected.high is not None:
        found = ", ".join(
            f"{own.name} {percent(own.accuracy)}"
            f" ({'inside' if _is_inside(own.accuracy or 0.0, expected.low, expected.high) else 'outside'} the interval)"
            for own in unseen
        )
        screen.print(f"Found in unseen environments: {found}.", soft_wrap=True)


def _is_inside(found: float, low: float, high: float) -> bool:
    """As the numbers are printed: 100.0 % is inside of 48%–100%, although that end may be 99.7."""
    return round(low, 2) <= round(found, 3) <= round(high, 2)


def _check_place(folder: Path) -> None:
    """Results of an earlier evaluation are replaced; files of somebody else are not, and stay where they are."""
    from bayescal.errors import BayescalError
    from bayescal.estimator.artifact import check_place

    if folder.exists() and not folder.is_dir():
        raise BayescalError(f"{folder} is a file: expected the name of a folder for the results")
    there = [name for name in OURS if (folder / name).exists()]
    if there and not _is_ours(folder / METRICS):
        raise BayescalError(
            f"{folder} has a {there[0]} that `bayescal evaluate` did not write: choose another name with -o"
        )
    check_place(folder)


def _is_ours(metrics: Path) -> bool:
    try:
        content = json.loads(read_file(metrics))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"method", "backbone", "confusion_matrix"} <= content.keys()


def _write(folder: Path, evaluated: "Evaluated", text: str, title: str | None, raw: bool) -> list[str]:
    """Each file whole or not at all, the numbers first; what an earlier evaluation drew does not stay beside them."""
    from bayescal.cli.files import written_into
    from bayescal.report.pictures import save_pictures
    from bayescal.report.plots import confusion_matrix_figure, save_figure
    from bayescal.util.atomic import write_text

    scores = evaluated.scores
    with written_into(folder):
        write_text(folder / METRICS, text)
        for name in OURS[1:]:
            (folder / name).unlink(missing_ok=True)
        write_text(folder / MISTAKES, _mistakes_csv(evaluated, raw))
        heading = f"{scores.images:,} images, accuracy {100 * (scores.accuracy or 0.0):.1f} %"
        figure = confusion_matrix_figure(evaluated.sparse_confusion_matrix(), evaluated.class_names, heading)
        save_figure(figure, folder / PICTURE)
        drawn = [path.name for path in save_pictures(evaluated, folder, title)] if title is not None else []
    return [METRICS, MISTAKES, PICTURE, *drawn]


def _mistakes_csv(evaluated: "Evaluated", raw: bool) -> str:
    from bayescal.util.csv_cells import plain_cell

    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(MISTAKE_COLUMNS)
    for row in evaluated.mistakes():
        cells = [str(cell).lower() if isinstance(cell, bool) else cell for cell in row.values()]
        writer.writerow([plain_cell(f"{cell:.6f}" if isinstance(cell, float) else cell, raw) for cell in cells])
    return stream.getvalue()


def _print_mistakes(screen: "Console", evaluated: "Evaluated", shown: int = 5) -> None:
    """The most confident mistakes, by name; all of them are in mistakes.csv."""
    from bayescal.cli.screen import near, percent, plain_table

    rows = evaluated.mistakes()
    if not rows:
        return
    screen.print(f"The most confident of {len(rows):,} mistakes:" if len(rows) > shown else "Mistakes:")
    table = plain_table("image", "is", "said", "confidence", numbers=("confidence",))
    for row in rows[:shown]:
        table.add_row(near(row["image"]), row["class"], row["said"], percent(row["confidence"]))
    screen.print(table)


def _print(screen: "Console", evaluation: "Evaluation", part: str) -> None:
    """Every metric with its meaning, then environments and classes."""
    from bayescal.cli.screen import count, percent, plain_table

    screen.print(f"{count(evaluation.scores.images, 'image')} (split: {part})")
    table = plain_table("metric", "value", "meaning", numbers=("value",))
    for key, name, meaning in _MEANING:
        value = getattr(evaluation.scores, key)
        if key == "worst_environment":
            meaning = f"{meaning}: {evaluation.worst_environment.name}"
        number = "–" if value is None else f"{value:.3f}"
        table.add_row(name, percent(value) if key in _PERCENTAGES else number, meaning)
    screen.print(table)

    columns = ("images", "accuracy", "Acc*", "coverage")
    table = plain_table("environment", "in training", *columns, numbers=columns)
    for own in evaluation.environments:
        shares = map(percent, (own.accuracy, own.selective_accuracy, own.coverage))
        table.add_row(own.name, "seen" if own.seen else "unseen", f"{own.images:,}", *shares)
    screen.print(table)

    table = plain_table("class", "images", "accuracy", numbers=("images", "accuracy"))
    for each in evaluation.classes:
        table.add_row(each.name, f"{each.images:,}", percent(each.accuracy))
    screen.print(table)
