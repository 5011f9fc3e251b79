"""`bayescal suggest`."""

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.cli.options import Cache, Device, Model, MovedBackbone, RawCsv
from bayescal.cli.suggested_environments import environments_of, tops_of
from bayescal.data.remote import join
from bayescal.errors import BayescalError, DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.features import FeatureBank
    from bayescal.features.content_index import ContentIndex

ENDINGS = (".csv", ".png", ".html")
COLUMNS = ("path", "class", "environment", "guess", "confidence", "uncertainty", "unfamiliar", "stands_for")


def suggest(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...", help="Unlabelled images: files, folders, patterns as for predict.", show_default=False
        ),
    ],
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many images to suggest.")] = 20,
    output: Annotated[
        list[Path],
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a table to fill in (.csv) or a sheet of the images (.png, .html); may be repeated.",
        ),
    ] = [],  # noqa: B006
    raw_csv: RawCsv = False,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "auto",
) -> None:
    """Say which unlabelled images to label next: those that stand for many that the model is unsure of.

    Images that the model has learned from are left out. Where a folder below IMAGES is named after an environment of
    the model, its neighbours are environments too, and those that the model has not seen come first. Fill in the column
    `class` of the CSV and give it to `bayescal add`.
    """
    from bayescal.cli.files import check_file, write_text
    from bayescal.cli.image_list import check_any, list_images
    from bayescal.cli.options import taken_device
    from bayescal.cli.screen import near, out, tell
    from bayescal.end_to_end import load_model
    from bayescal.features import AUTO, FeatureBank

    for path in output:
        check_file(path)
        if path.suffix.lower() not in ENDINGS:
            raise BayescalError(f"-o {path}: its ending says no format; expected one of {', '.join(ENDINGS)}")
    parts = [(argument, list_images([argument])) for argument in images]
    listed = [image for _, found in parts for image in found]
    check_any(listed, images)
    predictor = load_model(model, backbone, taken_device(device))
    bank = FeatureBank(predictor.backbone, folder=cache or AUTO)
    rows, left_out = rows_of(predictor, bank, listed, tops_of(parts), n)
    screen = out()
    if not output:
        _print(screen, rows)
    for path in output:
        if path.suffix.lower() == ".csv":
            write_text(path, _csv(rows, raw_csv))
        else:
            _draw(path, rows, f"Label these {len(rows)} next")
        tell(f"{len(rows)} suggestions written to {near(path)}")
    if left_out:
        tell(
            f"{left_out:,} of {len(listed):,} images were left out: the model has learned from them, or they are copies"
        )


def rows_of(
    predictor: "BasePredictor", bank: "FeatureBank", listed: list[str], tops: list[str], n: int
) -> tuple[list[dict[str, Any]], int]:
    """What to label, the most useful first, and how many images are known already. `tops`: `tops_of` the images.

    Images are hashed, and of those that are new at most 12,288 are encoded, which stand for all: memory and time do not
    grow with the rest of them.
    """
    import numpy as np

    from bayescal.cli.predictions import details_in_parts
    from bayescal.cli.screen import shows_progress
    from bayescal.estimator.suggesting import Sample, unknown
    from bayescal.estimator.suggesting import suggest as choose

    contents = bank.contents(listed, progress=shows_progress())
    new = _new_images(predictor, contents)
    known = {str(name) for name in predictor.environments}
    environments = environments_of([listed[i] for i in new], [tops[i] for i in new], known)
    first = np.array([bool(name) and name not in known for name in environments], dtype=bool)
    sample = Sample.of(first, n)
    features, looked_at = _encoded(bank, listed, contents, new, sample.images)
    said = details_in_parts(predictor, features)
    uncertainty = unknown(said)
    labelled = features[:0] if predictor.training is None else predictor.training.directions
    found = choose(features, uncertainty, labelled, n, first[looked_at], sample.within(looked_at))
    rows = [
        {
            "path": listed[new[looked_at[i]]],
            "class": "",
            "environment": environments[looked_at[i]],
            "guess": str(said.labels[i]),
            "confidence": float(said.confidence[i]),
            "uncertainty": float(uncertainty[i]),
            "unfamiliar": bool(said.unfamiliar[i]),
            "stands_for": int(count),
        }
        for i, count in zip(found.images.tolist(), found.stands_for, strict=True)
    ]
    return rows, len(listed) - len(contents.problems) - len(new)


def _encoded(
    bank: "FeatureBank", listed: list[str], contents: "ContentIndex", new: "np.ndarray", chosen: "np.ndarray"
) -> "tuple[Tensor, np.ndarray]":
    """Features of the new images that were chosen, and which of these (numbers into `new`) could be read."""
    import numpy as np

    from bayescal.cli.screen import note, shows_progress, tell
    from bayescal.features.feature_rows import Failure, describe_failures

    if not len(new) and len(contents.problems) < len(listed):
        raise DataError("the model has learned from all of these images: nothing is left to label")
    own = new[chosen]
    encoded = bank.rows([listed[i] for i in own], contents=contents.take(own), progress=shows_progress())
    failures = [*(Failure.of(listed[i], i, why) for i, why in contents.problems.items()), *encoded.failures]
    readable = np.setdiff1d(np.arange(len(own)), [failure.index for failure in encoded.failures]).astype(np.int64)
    if not len(readable):
        raise DataError(describe_failures(failures, len(listed), "could not be read"))
    if failures:
        note(describe_failures(failures, len(listed)))
    if len(own) < len(new):
        tell(f"{len(own):,} of {len(new):,} new images were looked at, evenly spread: they stand for all")
    return encoded.read(readable), chosen[readable]


def _new_images(predictor: "BasePredictor", contents: "ContentIndex") -> "np.ndarray":
    """One image of each content that the model has not learned from, ascending."""
    one = contents.distinct
    return one if predictor.training is None else one[~predictor.training.contains(contents.digests[one])]


def _print(screen: Any, rows: list[dict[str, Any]]) -> None:
    from bayescal.cli.screen import near, percent, plain_table

    numbers = ("confidence", "uncertainty", "stands for")
    table = plain_table("image", "maybe", "confidence", "uncertainty", "stands for", "remark", numbers=numbers)
    for row in rows:
        remark = "unfamiliar" if row["unfamiliar"] else ""
        numbers = (percent(row["confidence"]), f"{row['uncertainty']:.3f}", f"{row['stands_for']:,}")
        table.add_row(near(row["path"]), row["guess"], *numbers, remark)
    screen.print(table)
    screen.print(
        "stands for: how many of these images are more like it than like any labelled one; write them down with -o "
        "to-label.csv, fill in the column class, and: bayescal add MODEL to-label.csv -o MODEL2",
        soft_wrap=True,
    )


def _csv(rows: list[dict[str, Any]], raw: bool) -> str:
    from bayescal.util.csv_cells import plain_cell

    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        cells = {**row, "path": join(os.getcwd(), row["path"]), "unfamiliar": str(row["unfamiliar"]).lower()}
        cells |= {name: f"{row[name]:.6f}" for name in ("confidence", "uncertainty")}
        writer.writerow([plain_cell(cells[name], raw) for name in COLUMNS])
    return stream.getvalue()


def _draw(path: Path, rows: list[dict[str, Any]], title: str) -> None:
    from bayescal.report.thumbnails import Tile, save_sheet, thumbnail

    tiles = [
        Tile(
            thumbnail(row["path"], 144),
            (f"{rank}. {Path(row['path']).name}", f"maybe {row['guess']}  {row['confidence']:.0%}",
             f"stands for {row['stands_for']:,}" + ("  unfamiliar" if row["unfamiliar"] else "")),
        )
        for rank, row in enumerate(rows, start=1)
    ]  # fmt: skip
    try:
        save_sheet(path, title, tiles)
    except OSError as error:
        raise BayescalError(f"could not write {path}: {error.strerror or error}") from error
