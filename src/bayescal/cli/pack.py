"""`bayescal data pack`."""

from pathlib import Path
from typing import Annotated

import typer

from bayescal.cli.options import Cache, Device, Force, Ray, Shots, ValShots, import_from_here, open_cluster, parse_seeds
from bayescal.cli.screen import count, shows_progress, tell
from bayescal.errors import DataError


def pack(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A named data set, or a name of your own.")],
    source: Annotated[Path, typer.Option("--from", metavar="PATH", help="Where its images or its manifest are.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Ends in .bundle.")],
    backbone: Annotated[str, typer.Option(help="The frozen model (`bayescal backbones`).")] = "mini",
    seeds: Annotated[str, typer.Option(metavar="LIST", help="Seeds whose images are packed.")] = "1,2,3",
    shots: Shots = None,
    val_shots: ValShots = None,
    text: Annotated[
        list[str], typer.Option("--text", help="Another template or starting text that methods will ask for.")
    ] = [],  # noqa: B006
    cache: Cache = None,
    device: Device = "auto",
    ray: Ray = None,
    force: Force = False,
) -> None:
    """Pack a data set's features and the text tower into one file, for a machine without the images or open_clip.

    `bayescal bench --data FILE.bundle` there needs torch, safetensors, numpy, scipy, Optuna and Typer, and no image.
    """
    from bayescal.benchmark.bundle import SUFFIX, save_bundle
    from bayescal.benchmark.sources import Sources, known_name

    if output.suffix != SUFFIX:
        raise DataError(f"{output}: the name of a packed data set ends in {SUFFIX}")
    if output.exists() and not force:
        raise DataError(f"{output} exists already: choose another name, or replace it with --force")
    if not source.exists():
        raise DataError(f"--from {source}: there is no such folder or file")
    import_from_here(name)
    name, show = known_name(name), shows_progress()
    numbers = parse_seeds(seeds)
    cluster, device = open_cluster(ray, device)
    sources = Sources(
        {name: source}, backbone, numbers, device=device, cache=cache, shots=shots, val_shots=val_shots, progress=show,
        cluster=cluster,
    )  # fmt: skip
    prepared = sources.prepared(name)
    save_bundle(prepared, output, text)
    size = output.stat().st_size / 2**20
    tell(f"{output}: {count(len(prepared.problem.features), 'image')} of {prepared.dataset.title}, {size:.1f} MB")
