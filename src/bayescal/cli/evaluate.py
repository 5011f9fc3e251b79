"""`bayescal evaluate`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.cli.options import Cache, Device, Force, Model, MovedBackbone

if TYPE_CHECKING:
    from rich.console import Console

    from bayescal.data import Manifest
    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.estimator.evaluating import Evaluated
    from bayescal.evaluation.expected import ExpectedAccuracy
    from bayescal.evaluation.scoring import Evaluation

METRICS, PICTURE = "metrics.json", "confusion-matrix.png"
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
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A folder, CSV or JSON as for `bayescal fit`.", show_default=False)
    ],
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
            help="Where metrics.json and confusion-matrix.png go. Default: MODEL-evaluation, beside the model.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json instead of tables.")] = False,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Measure a model on labelled images: how often it is right, where, and whether it knows when it is not.

    Environments that the model learned from are marked as seen; the others show how it holds up elsewhere.
    """
    from bayescal.cli.files import check_folder
    from bayescal.cli.screen import near, out
    from bayescal.data import read_manifest
    from bayescal.util.jsonable import dumps

    folder = Path(os.path.abspath(output or f"{os.path.abspath(model)}-evaluation"))
    check_folder(Path(near(folder)), force, (METRICS, PICTURE))
    chosen, part = _choose(read_manifest(data), only or [], leave_out or [], split)
    predictor, evaluated = _measure(model, chosen, backbone, cache, device)
    _warn_about_training_images(evaluated.evaluation, part)
    record = _record(predictor, evaluated, model=str(model), data=str(data), split=part)
    text = dumps(record, indent=2, ensure_ascii=False) + "\n"
    _write(folder, evaluated.evaluation, text)
    if as_json:
        typer.echo(text, nl=False)
        return
    screen = out()
    _print(screen, evaluated.evaluation, part)
    if predictor.expected is not None:
        _print_expected(screen, predictor.expected, evaluated.evaluation)
    screen.print(f"Written to {near(folder)}: {METRICS}, {PICTURE}.", soft_wrap=True)


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
    from bayescal.cli.screen import shows_progress
    from bayescal.end_to_end import load_model
    from bayescal.estimator.evaluating import evaluate_images
    from bayescal.estimator.labelled_images import LabelledImages
    from bayescal.features import FeatureBank

    predictor = load_model(model, backbone, device)
    bank = FeatureBank(predictor.backbone, folder=cache)
    return predictor, evaluate_images(predictor, bank, LabelledImages.from_manifest(manifest), shows_progress())


def _warn_about_training_images(evaluation: "Evaluation", part: str) -> None:
    import warnings

    from bayescal.errors import BayescalWarning

    if part in ("all", "train") and any(environment.seen for environment in evaluation.environments):
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
        **evaluated.evaluation.to_json(),
        "expected": None if predictor.expected is None else asdict(predictor.expected),
        "members": predictor.record.get("members"),
        "unreadable": [{"image": failure.name, "reason": failure.reason} for failure in evaluated.unreadable],
    }


def _print_expected(screen: "Console", expected: "ExpectedAccuracy", evaluation: "Evaluation") -> None:
    """What was expected when the model was learned, beside what came out."""
    from bayescal.cli.screen import percent

    screen.print(f"Expected when it was learned: {expected.sentence()}", soft_wrap=True)
    unseen = [own for own in evaluation.environments if not own.seen]
    if unseen and expected.low is not None and expected.high is not None:
        found = ", ".join(
            f"{own.name} {percent(own.accuracy)}"
            f" ({'inside' if expected.low <= (own.accuracy or 0.0) <= expected.high else 'outside'} the interval)"
            for own in unseen
        )
        screen.print(f"Found in unseen environments: {found}.", soft_wrap=True)


def _write(folder: Path, evaluation: "Evaluation", text: str) -> None:
    from bayescal.cli.files import whole_folder
    from bayescal.report.plots import confusion_matrix_figure, save_figure

    scores = evaluation.scores
    with whole_folder(folder) as draft:
        (draft / METRICS).write_text(text, encoding="utf-8")
        title = f"{scores.images:,} images, accuracy {100 * (scores.accuracy or 0.0):.1f} %"
        figure = confusion_matrix_figure(evaluation.confusion_matrix, evaluation.class_names, title)
        save_figure(figure, draft / PICTURE)


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
