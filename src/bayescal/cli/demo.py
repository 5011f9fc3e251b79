"""`bayescal demo`."""

from pathlib import Path
from typing import Annotated

import typer

from bayescal.cli.options import Force, parse_seeds


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where pictures and the trained model go.")
    ] = Path("demo-output"),
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Random draws of the hyper-parameters.")] = 20,
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds, separated by commas.")] = "1,2,3",
    force: Force = False,
) -> None:
    """Learn handwritten digits whose colours lie: correlated with the digit in training, reversed at test.

    Compares zero-shot CLIP, CoOp, CAL and Bayes-CAL on data and weights that come with the package. No downloads.
    """
    chosen = parse_seeds(seeds)

    from bayescal.demo import run_demo

    run_demo(output, trials=trials, seeds=chosen, force=force)
