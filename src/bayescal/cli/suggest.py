"""`bayescal suggest`."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.cli.options import Cache, Device, Model, MovedBackbone, RawCsv
from bayescal.errors import BayescalError, DataError

if TYPE_CHECKING:
    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.features import Encoded

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

    Images that the model has learned from are left out. Where a folder in IMAGES is named after an environment of the
    model, its neighbours are environments too, and those that the model has not seen come first. Fill in the column
    `class` of the CSV and give it to `bayescal add`.
    """
    from bayescal.cli.files import check_file, write_text
    from bayescal.cli.image_list import check_any, list_images
    from bayescal.cli.options import taken_device
    from bayescal.cli.screen import near, out, shows_progress, tell
    from bayescal.end_to_end import load_model
    from bayescal.features import AUTO, FeatureBank

    for path in output:
        check_file(path)
        if path.suffix.lower() not in ENDINGS:
            raise BayescalError(f"-o {path}: its ending says no format; expected one of {', '.join(ENDINGS)}")
    listed = list_images(images)
    check_any(listed, images)
    predictor = load_model(model, backbone, taken_device(device))
    encoded = FeatureBank(predictor.backbone, folder=cache or AUTO).encode(listed, progress=shows_progress())
    rows, left_out = rows_of(predictor, listed, encoded, n)
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
    predictor: "BasePredictor", listed: list[str], encoded: "Encoded", n: int
) -> tuple[list[dict[str, Any]], int]:
    """What to label, the most useful first, and how many images are known already."""
    import numpy as np

    from bayescal.cli.screen import note
    from bayescal.estimator.suggesting import suggest as choose
    from bayescal.estimator.suggesting import unknown

    failed = {failure.index for failure in encoded.failures}
    if len(failed) == len(listed):
        raise DataError(encoded.describe_failures("could not be read"))
    if failed:
        note(encoded.describe_failures())
    new = _new_images(predictor, encoded, failed)
    if not len(new):
        raise DataError("the model has learned from all of these images: nothing is left to label")
    features = encoded.features[new]
    said = predictor.details(features)
    training = predictor.training
    labelled = features[:0] if training is None else training.directions
    environments = _environments([listed[i] for i in new], [str(name) for name in predictor.environments])
    known = {str(name) for name in predictor.environments}
    first = np.array([bool(name) and name not in known for name in environments])
    uncertainty = unknown(said)
    found = choose(features, uncertainty, labelled, n, first)
    rows = [
        {
            "path": listed[new[i]],
            "class": "",
            "environment": environments[i],
            "guess": str(said.labels[i]),
            "confidence": float(said.confidence[i]),
            "uncertainty": float(uncertainty[i]),
            "unfamiliar": bool(said.unfamiliar[i]),
            "stands_for": int(count),
        }
        for i, count in zip(found.images.tolist(), found.stands_for, strict=True)
    ]
    return rows, len(listed) - len(failed) - len(new)


def _new_images(predictor: "BasePredictor", encoded: "Encoded", failed: set[int]) -> Any:
    """One image of each content that the model has not learned from."""
    import numpy as np

    seen: set[str | None] = set()
    if predictor.training is not None:
        seen = {digest.tobytes().hex() for digest in predictor.training.hashes}
    new = []
    for i, content in enumerate(encoded.hashes):
        if i not in failed and content not in seen:
            new.append(i)
            seen.add(content)
    return np.array(new, dtype=np.int64)


def _environments(paths: list[str], known: list[str]) -> list[str]:
    """Of each image, the folder beside or below which an environment of the model lies; "" where none does."""
    parts = [Path(path).absolute().parts[:-1] for path in paths]
    depths = {level for own in parts for level, name in enumerate(own) if name in known}
    if not depths:
        return [""] * len(paths)
    level = min(depths)
    return [own[level] if len(own) > level else "" for own in parts]


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
        cells = {**row, "path": str(Path(row["path"]).absolute()), "unfamiliar": str(row["unfamiliar"]).lower()}
        cells |= {name: f"{row[name]:.6f}" for name in ("confidence", "uncertainty")}
        writer.writerow([plain_cell(cells[name], raw) for name in COLUMNS])
    return stream.getvalue()


def _draw(path: Path, rows: list[dict[str, Any]], title: str) -> None:
    from bayescal.report.thumbnails import Tile, save_sheet, thumbnail

    tiles = [
        Tile(
            thumbnail(row["path"], 144),
            (f"{place}. {Path(row['path']).name}", f"maybe {row['guess']}  {row['confidence']:.0%}",
             f"stands for {row['stands_for']:,}" + ("  unfamiliar" if row["unfamiliar"] else "")),
        )
        for place, row in enumerate(rows, start=1)
    ]  # fmt: skip
    try:
        save_sheet(path, title, tiles)
    except OSError as error:
        raise BayescalError(f"could not write {path}: {error.strerror or error}") from error
