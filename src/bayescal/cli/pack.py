"""`bayescal data pack`."""

from pathlib import Path
from typing import Annotated

import typer

from bayescal.cli.layout_options import ClassFromName, Columns, Layout, read_aloud
from bayescal.cli.options import Cache, Device, Force, Ray, Shots, ValShots, import_from_here, open_cluster, parse_seeds
from bayescal.cli.screen import count, shows_progress, tell
from bayescal.errors import DataError


def pack(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A named data set, or a name of your own.")],
    source: Annotated[
        str, typer.Option("--from", metavar="PATH", help="Where its images or its list are: as DATA of `bayescal fit`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Ends in .bundle.")],
    backbone: Annotated[str, typer.Option(help="The frozen model (`bayescal backbones`).")] = "mini",
    seeds: Annotated[str, typer.Option(metavar="LIST", help="Seeds whose images are packed.")] = "1,2,3",
    shots: Shots = None,
    val_shots: ValShots = None,
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
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
    from bayescal.benchmark.sources import Sources, named_path
    from bayescal.data import Reading
    from bayescal.estimator.artifact import check_place

    if output.suffix != SUFFIX:
        raise DataError(f"{output}: the name of a packed data set ends in {SUFFIX}")
    if output.exists() and not force:
        raise DataError(f"{output} exists already: choose another name, or replace it with --force")
    check_place(output.parent)
    import_from_here(name)
    paths, show = named_path(name, source, f"--from {source}"), shows_progress()
    numbers = parse_seeds(seeds)
    cluster, device = open_cluster(ray, device)
    sources = Sources(
        paths, backbone, numbers, device=device, cache=cache, shots=shots, val_shots=val_shots, progress=show,
        cluster=cluster, reading=Reading(layout, class_from_name, columns), read=read_aloud,
    )  # fmt: skip
    sources.check_reading()
    prepared = sources.prepared(next(iter(paths)))
    save_bundle(prepared, output, text)
    size = output.stat().st_size / 2**20
    tell(f"{output}: {count(len(prepared.problem.features), 'image')} of {prepared.dataset.title}, {size:.1f} MB")
