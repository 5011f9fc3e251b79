"""`bayescal predict`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bayescal.cli.options import Cache, Device, Model, MovedBackbone, RawCsv
from bayescal.errors import BayescalError, DataError
from bayescal.util.harmless import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bayescal.cli.answer_forms import RowContent
    from bayescal.cli.sorting import How, Sorter
    from bayescal.estimator.answers import Answer

_SORT = "Sorting"


def predict(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Image files, folders (with all below them), archives, URLs, patterns such as 'new/*.jpg'; - reads a "
            "list from stdin.",
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
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a file; its ending says the format: .csv, .json, .jsonl, .parquet, .xlsx or .txt.",
            show_default=False,
        ),
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also put every image into a folder of its class there, or into unsure or unfamiliar.",
            rich_help_panel=_SORT,
        ),
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="As copies. The default.", rich_help_panel=_SORT)] = False,
    move: Annotated[bool, typer.Option("--move", help="Move the images.", rich_help_panel=_SORT)] = False,
    link: Annotated[bool, typer.Option("--link", help="As links to the images.", rich_help_panel=_SORT)] = False,
    raw_csv: RawCsv = False,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "auto",
) -> None:
    """Say what is in images, how sure the model is, and which training environment they look like.

    Images that cannot be read are listed with the reason and do not stop the others. Exit code 0 if at least one image
    was answered, 2 if none was or one could not be sorted. With --json and --csv, stdout carries results and nothing
    else.
    """
    from bayescal.cli.image_list import check_any, list_images

    if as_json and as_csv:
        raise BayescalError("--json and --csv: choose one of them")
    form = "json" if as_json else "csv" if as_csv else "table"
    if output is not None:
        form = _output_form(output, form)
        output = output.absolute()
    sorter = _sorter(sort_into, copy, move, link, late=move and output is not None)
    listed = list_images(images)
    check_any(listed, images)
    if output is not None and str(output) in {str(Path(path).absolute()) for path in listed}:
        raise BayescalError(f"-o {output} is one of the images: choose another name")

    from bayescal.cli.answer_forms import RowContent
    from bayescal.cli.options import taken_device
    from bayescal.cli.predictions import answer_in_parts
    from bayescal.end_to_end import load_model
    from bayescal.features import FeatureBank

    predictor = load_model(model, backbone, taken_device(device))
    content = RowContent(predictor.classes, predictor.environments, probabilities, raw_csv)
    parts = answer_in_parts(predictor, FeatureBank(predictor.backbone, folder=cache), listed, listed)
    failed = _write(parts, form, output, content, listed, sorter)
    if sorter is not None:
        sorter.finish()
    _say_how_it_went(failed, len(listed), output, sorter)


def _output_form(output: Path, form: str) -> str:
    """The form that the file's name says, or the one that an option says where the name says none or text."""
    from bayescal.cli.answer_forms import SUFFIXES, form_of
    from bayescal.cli.files import check_file

    check_file(output)
    if form == "table":
        return form_of(output)
    if SUFFIXES.get(output.suffix.lower(), "table") not in (form, "table"):
        raise BayescalError(
            f"--{form} -o {output}: the ending says another format; leave out --{form}, or end it in .{form}"
        )
    return form


def _sorter(target: Path | None, copy: bool, move: bool, link: bool, late: bool) -> "Sorter | None":
    from bayescal.cli.sorting import Sorter

    ways = [way for way, wanted in (("copy", copy), ("move", move), ("link", link)) if wanted]
    if len(ways) > 1:
        raise BayescalError(f"--{ways[0]} and --{ways[1]}: choose one of them")
    if target is None:
        if ways:
            raise BayescalError(f"--{ways[0]} goes with --sort-into DIR: say where the images are to go")
        return None
    if target.exists() and not target.is_dir():
        raise BayescalError(f"--sort-into {target}: is a file; expected a folder")
    return Sorter(target, cast("How", ways[0] if ways else "copy"), late)


def _write(
    parts: "Iterable[list[Answer]]",
    form: str,
    output: Path | None,
    content: "RowContent",
    listed: list[str],
    sorter: "Sorter | None",
) -> list["Answer"]:
    """Every part where it belongs as soon as it is answered; the answers that are none."""
    from bayescal.cli.answer_forms import file_form, text_form
    from bayescal.cli.screen import Screen, out, shows_progress
    from bayescal.util.atomic import replacing
    from bayescal.util.progress import progress_bar

    failed = []
    with contextlib.ExitStack() as stack:
        if output is None:
            rows = stack.enter_context(text_form(form, Screen(), content, listed, out()))
        else:
            stack.enter_context(_as_sentence(output))
            draft = stack.enter_context(replacing(output))
            rows = stack.enter_context(file_form(form, draft, content, listed))
        # Rows on the screen are progress enough, and a bar would take hold of stdout.
        bar = stack.enter_context(progress_bar("images" if output and shows_progress() else None, len(listed)))
        for answers in parts:
            rows.add(answers)
            if sorter is not None:
                sorter.add(answers)
            failed += [answer for answer in answers if not answer.ok]
            bar.advance(len(answers))
    return failed


@contextlib.contextmanager
def _as_sentence(output: Path) -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        raise BayescalError(f"could not write {output}: {error.strerror or error}") from error


def _say_how_it_went(failed: list["Answer"], total: int, output: Path | None, sorter: "Sorter | None") -> None:
    from bayescal.cli.screen import count, near, note, tell

    if output is not None:
        tell(f"{count(total, 'answer')} written to {near(output)}")
    if sorter is not None:
        tell(sorter.said())
    if len(failed) == total:
        none = "the image could not be read" if total == 1 else f"none of the {total} images could be read"
        raise DataError(f"{none}: {_first(failed)}")
    if failed:
        note(f"{len(failed)} of {count(total, 'image')} could not be read: {_first(failed)}")
    if sorter is not None and (problem := sorter.problem()):
        raise BayescalError(problem)


def _first(failed: list["Answer"], shown: int = 3) -> str:
    more = f"; and {len(failed) - shown} more" if len(failed) > shown else ""
    return "; ".join(f"{one_line(answer.image)}: {answer.reason.rstrip('.')}" for answer in failed[:shown]) + more
