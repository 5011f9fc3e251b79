"""`bayescal evaluate`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import Cache, Device, Force, Model, MovedBackbone

if TYPE_CHECKING:
    from bayescal.cli.evaluation import Evaluation
    from bayescal.data import Manifest

METRICS, PICTURE = "metrics.json", "confusion-matrix.png"


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
    from bayescal.cli.evaluation import print_evaluation, to_json
    from bayescal.cli.files import check_folder
    from bayescal.cli.screen import near, out
    from bayescal.data import read_manifest

    folder = Path(os.path.abspath(output or f"{os.path.abspath(model)}-evaluation"))
    check_folder(Path(near(folder)), force, (METRICS, PICTURE))
    chosen, part = _choose(read_manifest(data), only or [], leave_out or [], split)
    evaluation = _measure(model, chosen, part, str(data), backbone, cache, device)
    _write(folder, evaluation)
    if as_json:
        typer.echo(to_json(evaluation), nl=False)
        return
    screen = out()
    print_evaluation(screen, evaluation)
    screen.print(f"Written to {near(folder)}: {METRICS}, {PICTURE}.", soft_wrap=True)


def _choose(manifest: "Manifest", only: list[str], leave_out: list[str], split: str | None) -> tuple["Manifest", str]:
    """The images to measure on, and the name of their split."""
    from bayescal.cli.training_data import in_environments
    from bayescal.errors import BayescalError, DataError

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
    model: Path,
    manifest: "Manifest",
    part: str,
    data: str,
    backbone: str | None,
    cache: Path | None,
    device: str,
) -> "Evaluation":
    from bayescal.cli.evaluation import class_numbers, measure
    from bayescal.cli.screen import shows_progress
    from bayescal.features import FeatureBank
    from bayescal.predictor import Predictor

    predictor = Predictor.load(model, backbone, device)
    labels = class_numbers(manifest, predictor)
    encoded = FeatureBank(predictor.backbone, folder=cache).encode(list(manifest.paths), progress=shows_progress())
    return measure(predictor, manifest, labels, encoded, about={"model": str(model), "data": data, "split": part})


def _write(folder: Path, evaluation: "Evaluation") -> None:
    from bayescal.cli.evaluation import to_json
    from bayescal.cli.files import whole_folder
    from bayescal.plots import confusion_matrix_figure, save_figure

    with whole_folder(folder) as draft:
        (draft / METRICS).write_text(to_json(evaluation), encoding="utf-8")
        title = f"{evaluation['images']:,} images, accuracy {100 * evaluation['accuracy']:.1f} %"
        confusion = evaluation["confusion_matrix"]
        save_figure(confusion_matrix_figure(confusion["counts"], confusion["classes"], title), draft / PICTURE)
