"""`bayescal bench`."""

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.benchmark.experiments import EXPERIMENTS, get_experiment
from bayescal.cli.layout_options import ClassFromName, Columns, Layout, read_aloud
from bayescal.cli.options import (
    END_TO_END,
    Cache,
    Device,
    Precision,
    Ray,
    Shots,
    ValShots,
    VisionWeights,
    import_from_here,
    open_cluster,
    parse_precision,
    parse_seeds,
    parse_settings,
)
from bayescal.cli.screen import note, out, plain_table, shows_progress, tell
from bayescal.errors import BayescalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bayescal.benchmark.bench import Bench, ExperimentPlan
    from bayescal.benchmark.end_to_end import EndToEnd
    from bayescal.benchmark.experiments.experiment import Experiment
    from bayescal.benchmark.results import ExperimentResult
    from bayescal.benchmark.searches import Search

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
            help=f"{', '.join(EXPERIMENTS)}, or all.",
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option("--data", metavar="PATH", help="NAME=PATH, or a folder that holds data sets; may be repeated."),
    ] = [],  # noqa: B006
    datasets: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these data sets, separated by commas. Default: all given.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only these methods, separated by commas: names, or module:Class."),
    ] = None,
    backbone: Annotated[str, typer.Option(help="The frozen model (`bayescal backbones`).")] = "mini",
    output: Results = Path("bayescal-results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look in minutes: 3 trials, seed 1, the core methods.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and how long they will take; train nothing.")
    ] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Hyper-parameter trials. Default: 20.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="LIST", help="Seeds. Default: 1,2,3.")] = None,
    sampler: Annotated[str, typer.Option(help="How trials are drawn: random (as the paper) or tpe.")] = "random",
    shots: Shots = None,
    val_shots: ValShots = None,
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Shots evenly over environments, also where a data set keeps its own way."),
    ] = False,
    storage: Storage = None,
    word_vectors: Annotated[
        Path | None, typer.Option(envvar="BAYESCAL_WORD_VECTORS", help="Word vectors, for the W2V instance.")
    ] = None,
    max_runs: Annotated[
        int,
        typer.Option(min=1, help="Most runs in one stack; fewer need less memory."),
    ] = 256,
    cache: Cache = None,
    device: Device = "auto",
    precision: Precision = "auto",
    ray: Ray = None,
    end_to_end: Annotated[
        bool,
        typer.Option(
            "--end-to-end",
            help="main: also train whole image models from pixels on all training images (needs a GPU).",
            rich_help_panel=END_TO_END,
        ),
    ] = False,
    vision: Annotated[
        str, typer.Option(metavar="NAME", help="The timm model to train.", rich_help_panel=END_TO_END)
    ] = "resnet18",
    vision_weights: VisionWeights = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Fixed in every such training, such as epochs=10; may be repeated.",
            rich_help_panel=END_TO_END,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Rerun a table or figure of the paper: search, select, print, and keep everything for `bayescal report`.

    Stop it anywhere: the same command continues, and finished runs are never repeated. Several processes may work on
    the same output folder or database at once.
    """
    from bayescal.benchmark.bench import Bench
    from bayescal.data import Reading

    names = EXPERIMENTS if experiment == "all" else [experiment]
    experiments = [get_experiment(name) for name in names]  # an unknown one is said before anything is opened
    chosen = _names("--methods", methods)
    import_from_here(*(value.partition("=")[0] for value in data), *(datasets or "").split(","), *(chosen or ()))
    layers = parse_precision(precision, device)
    whole = _whole(end_to_end, names, vision, vision_weights, settings or [])
    cluster, device = open_cluster(ray, device)
    opened = Bench.open(
        data, output=output, datasets=_names("--datasets", datasets), methods=chosen,
        backbone=backbone, quick=quick, trials=trials, seeds=parse_seeds(seeds) if seeds else None, sampler=sampler,
        shots=shots, val_shots=val_shots, balanced=balanced, word_vectors=word_vectors,
        reading=Reading(layout, class_from_name, columns), storage=storage, cache=cache,
        device=device,
        precision=layers, cluster=cluster, max_runs=max_runs, progress=shows_progress(quiet), end_to_end=whole,
        command=_command(),
    )  # fmt: skip
    opened.sources.read = read_aloud
    for name in opened.options.datasets:
        opened.sources.prepared(name)  # data that cannot be used end the command, also with `all`
    plans = _possible(opened, experiments, strict=experiment != "all")
    if dry_run:
        _print_plans(opened, plans)
        return
    for plan in plans:
        _show(opened.finish(plan))
    tell(f"bayescal report {output}   makes a page of it")


def _whole(
    wanted: bool, experiments: "Sequence[str]", vision: str, weights: str | None, settings: list[str]
) -> "EndToEnd | None":
    """What `--end-to-end` asks for; its options without it, or without the table it belongs to, are a mistake."""
    if not wanted:
        if weights or settings:
            given = "--vision-weights" if weights else "--set"
            raise BayescalError(f"{given} belongs to --end-to-end: add that option, or leave this one out")
        return None
    if "main" not in experiments:
        raise BayescalError("--end-to-end: only `bench main` (and `all`) has rows that are trained end to end")
    from bayescal.benchmark.end_to_end import EndToEnd
    from bayescal.end_to_end.algorithms import COMMON

    return EndToEnd(vision, weights, parse_settings("end-to-end", settings, COMMON))


def _names(option: str, text: str | None) -> tuple[str, ...] | None:
    """Each name once, in the order given; None: the option was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BayescalError(f"{option} {text!r}: expected names, separated by commas")
    return names


def _command() -> str:
    """As it was typed, so that it can be typed again."""
    return " ".join(["bayescal", *map(shlex.quote, sys.argv[1:])])


def _possible(bench: "Bench", experiments: "list[Experiment]", strict: bool) -> "list[ExperimentPlan]":
    """Plans of the experiments that the data allow. Of `all`, the others are left out with a note."""
    plans = []
    for experiment in experiments:
        try:
            plans.append(bench.plan(experiment))
        except BayescalError as error:
            if strict:
                raise
            note(f"{experiment.name} is left out: {error}")
    return plans


def _show(result: "ExperimentResult") -> None:
    """Print the tables of a finished experiment."""
    from bayescal.report.terminal import table_rich

    screen = out()
    for table in result.section.tables:
        screen.print(table_rich(table, screen.width))
        screen.print()
    for text in result.notes:
        note(text)
    tell(f"{result.section.experiment}: {result.path}")


def _print_plans(bench: "Bench", plans: "list[ExperimentPlan]") -> None:
    from bayescal.benchmark.estimate import estimate

    table = plain_table(
        "experiment", "data set", "method", "runs", "to do", "about", numbers=("runs", "to do", "about")
    )
    # A search that several experiments read is trained once: it is listed with the first of them.
    first: dict[tuple[str, str, str], tuple[str, Search]] = {}
    for plan in plans:
        for search in plan.searches:
            first.setdefault(search.key, (plan.experiment.name, search))
    total = 0.0
    for name, search in first.values():
        runs, missing = bench.missing(search)
        seconds = estimate(bench, search, missing)
        total += 0.0 if math.isnan(seconds) else seconds
        table.add_row(name, search.dataset, search.variant.title, f"{runs:,}", f"{missing:,}", _span(seconds))
    apart = [plan.experiment for plan in plans if plan.experiment.train is not None]
    for experiment in apart:
        table.add_row(experiment.name, "each", experiment.title, "", "", "unknown")
    out().print(table)
    besides = f", besides {', '.join(experiment.name for experiment in apart)}" if apart else ""
    out().print(f"In all about {_span(total)} on {bench.sources.device}{besides}. Nothing was trained.")


def _span(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
