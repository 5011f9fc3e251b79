"""`bayescal bench`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import (
    Cache,
    Device,
    Precision,
    Ray,
    Shots,
    ValShots,
    open_cluster,
    parse_precision,
    parse_seeds,
)
from bayescal.cli.screen import note, out, plain_table, shows_progress, tell
from bayescal.errors import BayescalError

if TYPE_CHECKING:
    from bayescal.experiments.bench import Bench
    from bayescal.experiments.experiment import Experiment

Results = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where results go, and where they are continued.")
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Database of the search and its records, as SQLAlchemy address. Default: FOLDER/study.db (SQLite).",
    ),
]


def bench(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="main, ablation, adapters, base-to-new, instances, epochs, landscape, tsne, wilcoxon, or all.",
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option("--data", metavar="PLACE", help="NAME=PATH, or a folder that holds data sets; may be repeated."),
    ] = [],  # noqa: B006
    datasets: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these data sets, separated by commas. Default: all given.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these methods, separated by commas.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="The frozen model (`bayescal backbones`).")] = "mini",
    output: Results = Path("bayescal-results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look in minutes: 3 draws, seed 1, the core methods.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and how long they will take; train nothing.")
    ] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Hyper-parameter draws. Default: 20.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="LIST", help="Seeds. Default: 1,2,3.")] = None,
    sampler: Annotated[str, typer.Option(help="How draws are made: random (as the paper) or tpe.")] = "random",
    shots: Shots = None,
    val_shots: ValShots = None,
    storage: Storage = None,
    word_vectors: Annotated[
        Path | None, typer.Option(envvar="BAYESCAL_WORD_VECTORS", help="Word vectors, for the W2V instance.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Most runs in one stack; fewer need less memory.")] = 256,
    cache: Cache = None,
    device: Device = "cpu",
    precision: Precision = "auto",
    ray: Ray = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Rerun a table or figure of the paper: search, select, print, and keep everything for `bayescal report`.

    Stop it anywhere: the same command continues, and finished runs are never repeated. Several processes may work on
    the same output folder or database at once.
    """
    from bayescal.experiments import EXPERIMENTS, get_experiment

    chosen = [get_experiment(name) for name in (EXPERIMENTS if experiment == "all" else [experiment])]
    at = _open(
        data, datasets, methods, backbone, output, quick, trials, seeds, sampler, shots, val_shots, storage,
        word_vectors, rows, cache, device, precision, ray, shows_progress(quiet),
    )  # fmt: skip
    for name in at.options.datasets:
        at.sources.arena(name)  # data that cannot be used are said once, not as a reason to leave experiments out
    chosen = _possible(chosen, at, strict=experiment != "all")
    if dry_run:
        _print_plan(at, chosen)
        return
    for one in chosen:
        at.notes.clear()
        at.run(one.searches(at))
        _finish(at, one)
    tell(f"bayescal report {output}   makes a page of it")


def _open(
    data, datasets, methods, backbone, output, quick, trials, seeds, sampler, shots, val_shots, storage,
    word_vectors, rows, cache, device, precision, ray, show,
) -> "Bench":  # fmt: skip
    from bayescal.backbones.base import usable_device
    from bayescal.experiments.bench import QUICK_SEEDS, QUICK_TRIALS, Bench, Options
    from bayescal.experiments.sources import Sources, find_places, known_name
    from bayescal.protocol.entries import entry_names, get_entry
    from bayescal.protocol.store import Store, sqlite_url

    if not data:
        raise BayescalError(
            "no data: say where the data sets are, for example --data pacs=PATH or --data FOLDER with FOLDER/pacs in it"
        )
    places = find_places(data)
    names = tuple(map(known_name, _names("--datasets", datasets))) if datasets is not None else tuple(places)
    wanted = _names("--methods", methods) if methods is not None else None
    for name in wanted or ():
        if name not in entry_names():
            get_entry(name)  # raises, with the nearest name
    numbers = parse_seeds(seeds) if seeds else (QUICK_SEEDS if quick else (1, 2, 3))
    options = Options(
        datasets=names, backbone=backbone, methods=wanted, trials=trials or (QUICK_TRIALS if quick else 20),
        seeds=numbers, sampler=sampler, quick=quick, max_rows=rows,
        word_vectors=str(word_vectors) if word_vectors else "", command=_command(),
    )  # fmt: skip
    layers = parse_precision(precision, device)
    cluster, device = open_cluster(ray, device)
    sources = Sources(
        places, backbone, numbers, str(usable_device(device)), cache, shots, val_shots, show, cluster, layers
    )  # fmt: skip
    for name in names:
        sources.place(name)  # a data set that is nowhere is said before the work begins
    return Bench(options, sources, Store(storage or sqlite_url(output)), output, show)


def _names(option: str, text: str) -> tuple[str, ...]:
    """Each name once, in the order given."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BayescalError(f"{option} {text!r}: expected names, separated by commas")
    return names


def _command() -> str:
    """As it was typed, so that it can be typed again."""
    return " ".join(["bayescal", *map(shlex.quote, sys.argv[1:])])


def _possible(chosen: "list[Experiment]", at: "Bench", strict: bool) -> "list[Experiment]":
    """Experiments that the data allow. Of `all`, those that are not possible are left out with a note."""
    kept = []
    for one in chosen:
        try:
            one.searches(at)
            kept.append(one)
        except BayescalError as error:
            if strict:
                raise
            note(f"{one.name} is left out: {error}")
    return kept


def _finish(at: "Bench", one: "Experiment") -> None:
    """Print the tables of a finished experiment and keep them."""
    from bayescal.report.terminal import table_rich

    section = one.section(at)
    path = section.save(at.output / "sections")
    screen = out()
    for table in section.tables:
        screen.print(table_rich(table, screen.width))
        screen.print()
    for text in section.notes:
        note(text)
    tell(f"{one.name}: {path}")


def _print_plan(at: "Bench", chosen: "list[Experiment]") -> None:
    from bayescal.experiments.estimate import estimate

    table = plain_table(
        "experiment", "data set", "method", "runs", "to do", "about", numbers=("runs", "to do", "about")
    )
    total, seen = 0.0, set()
    for one in chosen:
        for search in one.searches(at):
            if search.key in seen:
                continue
            seen.add(search.key)
            runs, missing = at.missing(search)
            seconds = estimate(at, search, missing)
            total += seconds
            table.add_row(one.name, search.dataset, search.entry.title, f"{runs:,}", f"{missing:,}", _span(seconds))
    out().print(table)
    out().print(f"In all about {_span(total)} on {at.sources.device}. Nothing was trained.")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
