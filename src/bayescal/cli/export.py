"""`bayescal export`."""

from pathlib import Path
from typing import Annotated

import typer

from bayescal.cli.options import Force, Model, MovedBackbone


def export(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.", show_default=False)
    ],
    form: Annotated[str, typer.Option("--format", help="Only onnx.")] = "onnx",
    precision: Annotated[
        str,
        typer.Option(
            help="float32: the same answers. float16: half the file, the same speed. int8: faster on two cores; needs "
            "--check."
        ),
    ] = "float32",
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Labelled images, as for evaluate, to compare the graph with the model on; a precision that costs "
            "more than 0.5 points of accuracy is refused.",
            show_default=False,
        ),
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The unpacked npm package onnxruntime-web: its program is put beside the page.",
            show_default=False,
        ),
    ] = None,
    backbone: MovedBackbone = None,
    force: Force = False,
) -> None:
    """Write a model as an ONNX graph that answers the same without torch, with a page that runs it in a browser.

    The graph takes decoded pixels of any size and gives probabilities, entropy and its parts, familiarity and the
    nearest training environment. `pip install bayescal-runtime` reads the folder.
    """
    from bayescal.cli.files import check_folder
    from bayescal.cli.screen import near, shows_progress, tell
    from bayescal.errors import BayescalError
    from bayescal.export.folder import OURS
    from bayescal.export.writing import check_request, export_model

    if form != "onnx":
        raise BayescalError(f"--format {form}: expected onnx")
    check_request(precision, check is not None, web)
    check_folder(output, force, OURS, "an exported model")

    from bayescal.end_to_end import load_model

    predictor, progress = load_model(model, backbone), shows_progress()
    sample = None
    if check is not None:
        from bayescal.export.check import read_sample

        sample = read_sample(predictor, check, progress)
    found = export_model(predictor, output, precision, sample=sample, web=web, progress=progress)
    size = (output / "model.onnx").stat().st_size
    what = f"model.onnx ({size / 1e6:.0f} MB, {precision})"
    tell(f"{near(output)}: {what}, answers.onnx, labels.json, README.md, index.html")
    if found is not None:
        tell(found.sentence())
