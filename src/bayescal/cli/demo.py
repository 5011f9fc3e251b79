"""`bayescal demo`."""

from pathlib import Path
from typing import Annotated

import typer

from bayescal.cli.options import Force, parse_seeds


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where images, picture and the trained model go.")
    ] = Path("demo-output"),
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds, separated by commas.")] = "1,2,3,4",
    force: Force = False,
) -> None:
    """Two questions: symbols that no word names, read in a style never seen; and colours that lie about the class.

    Compares zero-shot, CoOp, CAL, Bayes-CAL and what `bayescal fit` does by itself, on images drawn by code and weights
    that come with the package. No downloads; two or three minutes.
    """
    chosen = parse_seeds(seeds)

    from bayescal.demo.run import run_demo

    run_demo(output, seeds=chosen, force=force)
