"""What both ways of `bayescal fit` print, and the folder in which they can be continued."""

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescal.cli.options import is_from_here
from bayescal.cli.screen import count, near, note, percent, plain_table
from bayescal.estimator.artifact import CONFIG
from bayescal.util.atomic import PAUSE, beside

if TYPE_CHECKING:
    from rich.console import Console

    from bayescal.estimator.training_data import TrainingData
    from bayescal.evaluation.expected import ExpectedAccuracy

CHECKPOINTS = "checkpoints"  # .MODEL.checkpoints
LARGEST_TABLE = (30, 8)  # classes × environments that are still pleasant to read


@contextmanager
def checkpoint_folder(model: Path, goes_after: type[BaseException]) -> Iterator[Path]:
    """A folder beside the model in which training can be continued.

    It goes when the model is done, and after errors of the type `goes_after`; it stays after an interruption, after all
    other errors, and where the disk refused the model: what was learned is not learned again.
    """
    folder = beside(model, CHECKPOINTS)
    _clear_finished(model.parent)
    try:
        yield folder
    except KeyboardInterrupt:
        raise
    except goes_after as error:
        if _disk_refused(error) and folder.is_dir() and any(folder.iterdir()):
            note(f"what was learned is kept in {near(folder)}: the same command continues from there")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _disk_refused(error: BaseException | None) -> bool:
    """Whether the error comes from a disk, at any remove."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None


def _clear_finished(parent: Path) -> None:
    """Remove the checkpoints of models that are done: their process was killed just before it could.

    What was written there after the model belongs to a training that is to take the model's place. A folder with
    nothing in it was made a moment ago, or its process was killed while it removed it.
    """
    with contextlib.suppress(OSError):
        left = set(parent.glob(f".*.{CHECKPOINTS}"))
        for model in parent.glob(f"*/{CONFIG}") if left else ():
            folder = beside(model.parent, CHECKPOINTS)  # which cuts long names
            if folder not in left:
                continue
            written = [path.stat().st_mtime for path in folder.iterdir()]
            over = model.stat().st_mtime >= max(written) if written else time.time() - folder.stat().st_mtime > PAUSE
            if over:
                shutil.rmtree(folder, ignore_errors=True)


def print_found(screen: "Console", chosen: "TrainingData") -> None:
    """How the data were understood; the images to learn from, class by class; what is kept apart."""
    if chosen.manifest.understood:
        screen.print(f"Read as {chosen.manifest.understood}.", soft_wrap=True)
    manifest, counts = chosen.manifest, chosen.manifest.counts()
    used = [e for e in range(len(manifest.environments)) if counts[:, e].any()]
    apart = [f"{name} left out ({count(n, 'image')})" for name, n in chosen.left_out.items()]
    if chosen.n_test:
        apart.append(f"{count(chosen.n_test, 'test image')} not touched")
    found = f"Found {count(len(manifest), 'image')} of {count(len(manifest.classes), 'class')} in "
    screen.print(found + "; ".join([count(len(used), "environment"), *apart]) + ".", soft_wrap=True)
    if len(manifest.classes) > LARGEST_TABLE[0] or len(used) > LARGEST_TABLE[1]:
        return
    names = [manifest.environments[e] for e in used]
    table = plain_table("class", *names, numbers=names)
    for name, row in zip(manifest.classes, counts, strict=True):
        table.add_row(name, *(f"{row[e]:,}" if row[e] else "–" for e in used))
    screen.print(table)


def print_learned(screen: "Console", learned: str, record: dict[str, Any], threshold: float, output: Path) -> None:
    """What was learned, in a sentence; how it validates; where it is."""
    screen.print(learned, soft_wrap=True)
    if record["validation_accuracy"] is not None:
        right = percent(record["validation_accuracy"])
        screen.print(f"Validation accuracy: {right} of {count(record['validation_images'], 'image')}.")
    if record["validation_accuracy"] is not None or "members" in record:
        if threshold <= 1:
            screen.print(f'Threshold: {threshold:.3f}; answers with less confidence are called "unsure".')
        else:
            screen.print('Threshold: no image left out was answered correctly, so every answer is called "unsure".')
    screen.print(f"Saved in {near(output)}.", soft_wrap=True)


def print_expected(screen: "Console", expected: "ExpectedAccuracy", record: dict[str, Any]) -> None:
    """What to expect elsewhere, and why this model: its members, with how they did where they had not been."""
    screen.print(f"\n{expected.sentence()}", soft_wrap=True)
    where = "environments" if record["left_out"] == "environments" else "images"
    columns = ("weight", "accuracy", "NLL")
    table = plain_table("member", *columns, numbers=columns)
    members = sorted(record["members"], key=lambda member: -member["weight"])
    for member in members:
        numbers = percent(member["weight"]), percent(member["left_out_accuracy"]), f"{member['left_out_nll']:.2f}"
        table.add_row(member["title"], *numbers)
    screen.print(f"Why this model: each member's weight, and how it did on left-out {where}.")
    screen.print(table)


def print_next(
    screen: "Console", output: Path, chosen: "TrainingData", cache: Path | None, device: str, method: str
) -> None:
    """The command to try the model with."""
    command = ["bayescal", "predict", near(output), near(chosen.unseen or chosen.manifest.paths[0])]
    if cache is not None:
        command += ["--cache", str(cache)]
    if device != "auto":
        command += ["--device", device]
    # A model is never the reason to import something from the folder one is in: that has to be said.
    start = "PYTHONPATH=. " if is_from_here(method) else ""
    screen.print(f"\nTry it:\n  {start}{shlex.join(command)}", soft_wrap=True)
