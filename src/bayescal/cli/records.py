"""`bayescal records`."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.cli.bench import Storage
from bayescal.cli.options import Force, RawCsv
from bayescal.cli.screen import Screen, count, out, plain_table, tell
from bayescal.errors import BayescalError, DataError
from bayescal.util.harmless import indented

if TYPE_CHECKING:
    from bayescal.benchmark.store import Store

FOUND_PROBLEMS = 1
FORMATS = ("table", "csv", "parquet", "json")


def records(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A folder of `bayescal bench`.")] = Path(
        "bayescal-results"
    ),
    where: Annotated[
        list[str],
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="Only records where this holds: dataset, variant, method, fold, seed, trial …; may be repeated.",
        ),
    ] = [],  # noqa: B006
    format: Annotated[str | None, typer.Option(help="table, csv, parquet or json (one record a line).")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.")] = None,
    add: Annotated[
        list[Path],
        typer.Option("--add", metavar="PATH", help="First take in the records of another folder or JSON export."),
    ] = [],  # noqa: B006
    raw_csv: RawCsv = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare every record and every result with its checksum; print what is wrong."),
    ] = False,
    storage: Storage = None,
    force: Force = False,
) -> None:
    """Look at the runs of a search, or export them: one row per run with its config, curves' ends and scores.

    The format follows the file's ending. CSV and Parquet are flat (`config.lambda_irm`, `scores.val.accuracy`); JSON
    has everything, epoch by epoch. `--add` brings records of several machines together, all or none of them.

    A record that is not as it was written is named and left out, here and in every table; `bayescal bench` makes it
    again. `--verify` looks at all of them and ends with exit code 1 where something is wrong.
    """
    from bayescal.benchmark.export import flat, matching, no_match, read_records, write_records
    from bayescal.benchmark.store import Store, sqlite_url

    if add:
        taken = [record for path in add for record in read_records(path)]  # all of them are read before one is added
        Store(storage or sqlite_url(results)).add(taken)
    if storage is None and not (results / "study.db").exists():
        raise DataError(
            f"{results}: holds no records (study.db). Make some with `bayescal bench`, or give --storage URL"
        )
    if verify:
        _verify(Store(storage or sqlite_url(results), create=False), results)
        return
    format = format or (output.suffix.lstrip(".").replace("jsonl", "json") if output else "table")
    if format not in FORMATS:
        said = f"--format {format}" if format else f"-o {output}: its ending names no format, and --format is not given"
        raise BayescalError(f"{said}; expected one of {', '.join(FORMATS)}")
    kept = Store(storage or sqlite_url(results), create=False)
    found = matching(kept.find(), where)
    first = next(found, None)
    if first is None and where:
        raise DataError(no_match(kept.find(), where))
    found = chain([] if first is None else [first], found)
    if format == "table":
        if output is not None:
            raise BayescalError("a table goes to the screen; use --format csv, parquet or json with --output")
        _print([flat(record) for record in found])
        return
    if output is None and format == "parquet":
        raise BayescalError("Parquet is binary: say where it goes with -o FILE.parquet")
    if output is not None and output.exists() and not force:
        raise DataError(f"{output} exists already: choose another name, or replace it with --force")
    n = write_records(found, format, output or Screen(), raw_csv)
    tell(f"{count(n, 'record')}{f' in {output}' if output else ''}")


def _verify(store: "Store", results: Path) -> None:
    """Print what is whole, what cannot be checked and what is damaged; the exit code says whether anything is."""
    from bayescal.benchmark.results import read_section
    from bayescal.report.load import section_files

    found, screen = store.verify(), out()
    problems = [str(damaged) for damaged in found.damaged]
    whole, unchecked = 0, 0
    for path in section_files(results):
        try:
            checked = read_section(path).checked
            whole, unchecked = whole + checked, unchecked + (not checked)
        except DataError as error:
            problems.append(str(error))
    for problem in problems:
        screen.print(indented(f"Problem: {problem}"), soft_wrap=True)
    for noun, good, without in (("record", found.whole, found.unchecked), ("result", whole, unchecked)):
        more = f", {count(without, noun)} without a checksum (of before there were any)" if without else ""
        screen.print(f"{count(good, noun)} as written{more}.", soft_wrap=True)
    if problems:
        screen.print(f"{count(len(problems), 'problem')}. `bayescal bench` makes again what is damaged.")
        raise typer.Exit(FOUND_PROBLEMS)


def _print(rows: list[dict[str, Any]]) -> None:
    """Searches rather than runs: thousands of lines say nothing."""
    searches: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        searches.setdefault((row["dataset"], row["variant"], row["purpose"], row["backbone.name"]), []).append(row)
    table = plain_table(
        "data set", "variant", "purpose", "backbone", "runs", "trials", "seeds", "folds", "best val", "seconds",
        numbers=("runs", "trials", "seeds", "folds", "best val", "seconds"),
    )  # fmt: skip
    for key, same in sorted(searches.items()):
        best = max((row["best.val"] for row in same if row.get("best.val") is not None), default=None)
        counts = [len({row[name] for row in same}) for name in ("trial", "seed", "fold")]
        seconds = sum(row["seconds"] for row in same)
        shown = "–" if best is None else f"{100 * best:.1f} %"
        table.add_row(*key, f"{len(same):,}", *map(str, counts), shown, f"{seconds:.0f}")
    out().print(table)
    unchecked = sum(not row["checked"] for row in rows)
    more = f", {unchecked:,} of them without a checksum (of before there were any)" if unchecked else ""
    out().print(f"{count(len(rows), 'record')}{more}")
