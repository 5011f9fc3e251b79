"""`bayescal predict`."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import Cache, Device, Model, MovedBackbone

if TYPE_CHECKING:
    from bayescal.estimator.answers import Answer

_FORMATS = {".json": "json", ".csv": "csv"}


def predict(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Image files, folders (with all below them), patterns such as 'new/*.jpg'; - reads a list from stdin.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array with everything that is known.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with commas.")] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also the probability of every class (JSON always has them).")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to a file; .json and .csv say the format.", show_default=False
        ),
    ] = None,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "cpu",
) -> None:
    """Say what is in images, how sure the model is, and which training environment they look like.

    Images that cannot be read are listed with the reason and do not stop the others. Exit code 0 if at least one image
    was answered, 2 if none was. With --json and --csv, stdout carries results and nothing else.
    """
    from bayescal.cli.files import check_file, write_text
    from bayescal.cli.image_list import check_any, list_images
    from bayescal.cli.screen import count, near, note, out, shows_progress, tell
    from bayescal.errors import BayescalError, DataError

    if as_json and as_csv:
        raise BayescalError("--json and --csv: choose one of them")
    form = "json" if as_json else "csv" if as_csv else "table"
    if output is not None:
        check_file(output)
        output = output.absolute()
        if form == "table":
            form = _FORMATS.get(output.suffix.lower(), "table")
    listed = list_images(images)
    check_any(listed, images)
    if output is not None and str(output) in {str(Path(path).absolute()) for path in listed}:
        raise BayescalError(f"-o {output} is one of the images: choose another name")

    from bayescal.cli.predictions import answer_all
    from bayescal.end_to_end import load_model
    from bayescal.features import FeatureBank

    predictor = load_model(model, backbone, device)
    encoded = FeatureBank(predictor.backbone, folder=cache).encode(listed, progress=shows_progress())
    answers = answer_all(predictor, listed, encoded)
    if output is not None:
        write_text(output, _text(form, answers, predictor.classes, probabilities))
        tell(f"{count(len(answers), 'answer')} written to {near(output)}")
    elif form == "table":
        _print_table(out(), answers, predictor.classes, probabilities)
    else:
        typer.echo(_text(form, answers, predictor.classes, probabilities), nl=False)

    failed = [answer for answer in answers if not answer.ok]
    if len(failed) == len(answers):
        none = (
            "the image could not be read" if len(answers) == 1 else f"none of the {len(answers)} images could be read"
        )
        raise DataError(f"{none}: {_first(failed)}")
    if failed:
        note(f"{len(failed)} of {count(len(answers), 'image')} could not be read: {_first(failed)}")


def _first(failed: list["Answer"], shown: int = 3) -> str:
    more = f"; and {len(failed) - shown} more" if len(failed) > shown else ""
    return "; ".join(f"{answer.image}: {answer.reason.rstrip('.')}" for answer in failed[:shown]) + more


def _text(form: str, answers: list["Answer"], classes: list, probabilities: bool) -> str:
    from rich.console import Console

    from bayescal.cli import predictions as forms
    from bayescal.cli.screen import PIPE_WIDTH

    if form == "json":
        return forms.as_json(answers, classes)
    if form == "csv":
        return forms.as_csv(answers, classes, probabilities)
    text = io.StringIO()
    page = Console(file=text, width=PIPE_WIDTH, highlight=False, markup=False)
    _print_table(page, answers, classes, probabilities)
    return text.getvalue()


def _print_table(screen, answers: list["Answer"], classes: list, probabilities: bool) -> None:
    from math import log

    from bayescal.cli.predictions import as_table

    screen.print(as_table(answers, classes, probabilities))
    if any(answer.ok for answer in answers):
        screen.print(
            f"uncertainty: entropy, 0 (sure) to {log(len(classes)):.2f} (no idea); "
            "looks like: the most similar training environment; "
            "unfamiliar: unlike all that was learned from, so that the answer means little"
        )
