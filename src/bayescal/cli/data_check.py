"""What `bayescal data check` finds, and the tables that the data commands print."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bayescal.cli.screen import count, out, plain_table
from bayescal.data import Manifest, few_shot_split
from bayescal.data.datasets.base import Dataset, Fold
from bayescal.data.inspection import find_copies, read_contents
from bayescal.errors import DataError
from bayescal.util.harmless import indented, one_line

SHOWN = 5  # examples of a finding
ROWS = 70  # classes in a table; above that, only the smallest and largest cells are said
_SEED = 1


@dataclass(frozen=True)
class Report:
    """Problems would make results wrong; notes are worth knowing."""

    problems: list[str]
    notes: list[str]


def examine(
    dataset: Dataset,
    manifest: Manifest,
    shots: int,
    val_shots: int,
    backbone: str,
    progress: bool = False,
    own: bool = False,
) -> Report:
    """Open each image, look for copies, draw shots as an experiment would, and read the names as the backbone would.

    `own`: a data set that has no name here, which need not be fit for experiments.
    """
    contents = read_contents(manifest, progress)
    problems, notes = [], []
    if len(manifest.classes) < 2:
        problems.append(
            f"one class only ({', '.join(manifest.classes)}): there is nothing to tell apart, and `fit` refuses it"
        )
    if contents.unreadable:
        problems.append(_finding(f"{count(len(contents.unreadable), 'image')} cannot be read", contents.unreadable))
    copies = find_copies(manifest, contents.hashes)
    for groups, sink, said in (
        (copies.across_classes, problems, "labelled as two different classes"),
        (copies.across_splits, problems, "in two different splits"),
        (copies.across_environments, notes, "in two environments: not learned from while the other one is the test"),
        (copies.within, notes, "there more than once: used once"),
    ):
        if groups:
            pairs = [_same(manifest, rows) for rows in groups]
            verb = "is" if len(groups) == 1 else "are"
            sink.append(_finding(f"{count(len(groups), 'image')} {verb} {said} (same content)", pairs))
    drawn, refused = _draw(dataset, manifest, contents.hashes, shots, val_shots, own)
    alike, strange = _words(manifest, backbone)
    return Report(problems + refused + alike, notes + drawn + strange)


def _words(manifest: Manifest, backbone: str) -> tuple[list[str], list[str]]:
    """About names that the backbone's text tower cannot tell apart, which `fit` refuses, and those it does not know."""
    from bayescal.backbones.checks import name_notes

    found = [name_notes(backbone, manifest.class_words, "class", manifest.classes)]
    if len(manifest.environments) > 1:  # the name of the only one is never read
        found.append(name_notes(backbone, manifest.environment_words, "environment", manifest.environments))
    return [f.alike for f in found if f.alike], [f.strange for f in found if f.strange]


def _draw(
    dataset: Dataset, manifest: Manifest, hashes: Sequence[str | None], shots: int, val_shots: int, own: bool
) -> tuple[list[str], list[str]]:
    """Notes about cells that are too small, and the reasons why nothing can be drawn at all."""
    try:
        folds = dataset.folds(manifest)
    except DataError as error:
        if own:
            return [f"enough for `bayescal fit`, but not for `bayescal bench`. {error}"], []
        return [], [str(error)]
    where: dict[str, list[str]] = defaultdict(list)  # the same note often holds for several held-out environments
    refused = []
    together = len(folds) == 1
    for fold in folds:
        try:
            for note in _shots(dataset, manifest, fold, hashes, shots, val_shots):
                where[note].append(fold.name)
        except DataError as error:
            refused.append(str(error) if together else f"With {fold.name} as the test: {error}")
    return [note if together else f"{note} (test: {', '.join(names)})" for note, names in where.items()], refused


def _shots(
    dataset: Dataset, manifest: Manifest, fold: Fold, hashes: Sequence[str | None], shots: int, val_shots: int
) -> tuple[str, ...]:
    split = few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=fold.train_environments,
        shots=shots,
        val_shots=val_shots if fold.val is None else 0,
        seed=_SEED,
        balanced=dataset.balanced,
        hashes=hashes,
        forbidden={found for row in fold.test.nonzero()[0].tolist() if (found := hashes[row]) is not None},
        pool=fold.pool,
        class_names=manifest.classes,
        environment_names=manifest.environments,
    )
    return tuple(note for note in split.notes if "copy of another" not in note)  # said above, with names


def print_report(report: Report) -> None:
    """Problems first, then notes, then the verdict."""
    from rich.text import Text

    screen = out()
    for title, style, findings in (("Problem", "bold red", report.problems), ("Note", "bold yellow", report.notes)):
        for finding in findings:
            screen.print(Text.assemble((f"{title}: ", style), indented(finding)), soft_wrap=True)
    if report.problems:
        screen.print(f"{count(len(report.problems), 'problem')}: results would be wrong.")
    else:
        screen.print("Nothing here would make results wrong.")


def print_counts(manifest: Manifest) -> None:
    """Images of each class in each environment, and of each split where there are splits."""
    counts = manifest.counts()
    screen = out()
    screen.print(
        f"{count(len(manifest), 'image')}, {count(len(manifest.classes), 'class')}, "
        f"{count(len(manifest.environments), 'environment')}"
    )
    environments = manifest.environments
    if len(manifest.classes) <= ROWS:
        table = plain_table("", *environments, "together", numbers=(*environments, "together"))
        for name, row in zip(manifest.classes, counts.tolist(), strict=True):
            table.add_row(name, *(f"{n:,}" for n in row), f"{sum(row):,}")
    else:
        table = plain_table("", *environments, numbers=environments)
        for label, row in (("fewest of a class", counts.min(axis=0)), ("most of a class", counts.max(axis=0))):
            table.add_row(label, *(f"{n:,}" for n in row.tolist()))
    table.add_section()
    together = counts.sum(axis=0).tolist()
    table.add_row("together", *(f"{n:,}" for n in together), *([f"{sum(together):,}"] if len(counts) <= ROWS else []))
    screen.print(table)
    splits = [split for split in ("train", "val", "test") if (manifest.splits == split).any()]
    if splits:
        screen.print("Splits: " + ", ".join(f"{split} {(manifest.splits == split).sum():,}" for split in splits))


def print_flips(folder: Path) -> None:
    """What a maker drew: images, wrong labels and colours against the label, part by part."""
    with open(folder / "manifest.csv", encoding="utf-8", newline="") as stream:
        records = list(csv.DictReader(stream))
    parts: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for record in records:
        parts[record["environment"], record["split"]].append(record)
    table = plain_table("environment", "split", "images", "wrong labels", "colour against label", numbers=("images",))
    for (environment, split), rows in parts.items():
        shares = (sum(int(row[name]) for row in rows) / len(rows) for name in ("label_flipped", "colour_flipped"))
        table.add_row(environment, split, f"{len(rows):,}", *(f"{100 * share:.1f} %" for share in shares))
    out().print(table)


def _finding(said: str, found: Sequence[str]) -> str:
    lines = [f"  {one_line(text)}" for text in found[:SHOWN]]
    more = [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([f"{said}:", *lines, *more])


def _same(manifest: Manifest, rows: Sequence[int]) -> str:
    more = f" = {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return " = ".join(_short(manifest, row) for row in rows[:SHOWN]) + more


def _short(manifest: Manifest, row: int) -> str:
    """An image by its last three folders, as people know it, and its split."""
    path = "/".join(Path(manifest.paths[row]).parts[-3:])
    return f"{path} ({manifest.splits[row]})" if manifest.splits[row] else path
