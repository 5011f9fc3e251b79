"""`bayescal fit`."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import Cache, Device, Force

if TYPE_CHECKING:
    from bayescal.classifier import FewShotClassifier
    from bayescal.cli.training_data import TrainingData

LARGEST_TABLE = (30, 8)  # classes × environments that are still pleasant to read

_LEARN, _DATA, _RUN = "What to learn", "Images and names", "Running"
_WHOLE = "Training an image model (a GPU and thousands of images)"


def fit(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A folder ENVIRONMENT/CLASS/image, or a CSV or JSON file with path, class, environment, split.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="The folder to write.", show_default=False)
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="See `bayescal methods`. Default: bayes-cal; end to end: erm.",
            show_default=False,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="mini, ARCH:TAG or ARCH:/path/to/weights; see `bayescal backbones`.",
            rich_help_panel=_LEARN,
        ),
    ] = "mini",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A hyper-parameter of the method; may be repeated.",
            rich_help_panel=_LEARN,
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Hyper-parameter settings to try; the first are the defaults.",
            rich_help_panel=_LEARN,
        ),
    ] = 1,
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="Models to train and average (an ensemble).", rich_help_panel=_LEARN)
    ] = 1,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature on validation images.", rich_help_panel=_LEARN)
    ] = False,
    draws: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Posterior draws in prediction; 0: the mean alone.", rich_help_panel=_LEARN
        ),
    ] = 20,
    views: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Augmented views per training image. Default: the backbone's own.",
            rich_help_panel=_LEARN,
        ),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Training images per class over all environments. Default: all.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    val_shots: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Validation images per class. Default: as many as --shots.", rich_help_panel=_DATA
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="ENV", help="An environment not to learn from; may be repeated.", rich_help_panel=_DATA),
    ] = None,
    class_words: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help='What to call a class: {"n02084071": "dog"}.', rich_help_panel=_DATA),
    ] = None,
    environment_words: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="What to call an environment.", rich_help_panel=_DATA),
    ] = None,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Train a whole image model from pixels.", rich_help_panel=_WHOLE)
    ] = False,
    vision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The timm model to train, such as resnet50.", rich_help_panel=_WHOLE),
    ] = None,
    vision_weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Its weights at the start; the word timm downloads those that timm publishes. Default: random.",
            rich_help_panel=_WHOLE,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Fixes the split and every random number.", rich_help_panel=_RUN)
    ] = 1,
    cache: Cache = None,
    device: Device = "cpu",
    force: Force = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print notes and errors only.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Learn a classifier from a handful of images per class and environment.

    Splits that DATA names are respected: train images are learned from, val images choose and calibrate, test images
    are never touched. Interrupted, the same command continues where it was.
    """
    from bayescal.artifact import check_output
    from bayescal.cli.options import parse_settings, read_words
    from bayescal.cli.screen import out, shows_progress
    from bayescal.errors import BayescalError

    check_output(output, force)
    output = Path(os.path.abspath(output))
    if end_to_end:
        from bayescal.cli.fit_end_to_end import fit_whole_model

        foreign = {
            "--backbone": backbone != "mini",
            "--trials": trials > 1,
            "--members": members > 1,
            "--views": views is not None,
            "--class-words": class_words is not None,
            "--environment-words": environment_words is not None,
        }
        fit_whole_model(
            data,
            output,
            method or "erm",
            settings or [],
            leave_out or [],
            foreign=[option for option, given in foreign.items() if given],
            vision=vision,
            weights=vision_weights,
            shots=shots,
            val_shots=val_shots,
            calibrate=calibrate,
            seed=seed,
            device=device,
            force=force,
            quiet=quiet,
        )
        return
    if vision or vision_weights:
        raise BayescalError(
            "--vision and --vision-weights choose the model to train with --end-to-end: add that option"
        )
    method = method or "bayes-cal"
    words = read_words(class_words, "--class-words"), read_words(environment_words, "--environment-words")
    options = parse_settings(method, settings or [])

    from bayescal.cli.training_data import choose_training_data
    from bayescal.data import read_manifest

    manifest = read_manifest(data, class_words=words[0], environment_words=words[1])
    chosen = choose_training_data(manifest, leave_out or [], shots, val_shots, seed)
    screen = out()
    if not quiet:
        _print_found(screen, chosen)

    from bayescal.classifier import FewShotClassifier

    classifier = FewShotClassifier(
        method,
        backbone,
        shots=shots,
        val_shots=val_shots,
        trials=trials,
        members=members,
        calibrate=calibrate,
        draws=draws,
        views=views,
        options=options,
        class_words=_words_in_use(chosen.manifest.classes, chosen.manifest.class_words, chosen.manifest.class_ids),
        environment_words=_words_in_use(
            chosen.manifest.environments, chosen.manifest.environment_words, chosen.manifest.environment_ids
        ),
        seed=seed,
        cache=cache,
        device=device,
        verbose=shows_progress(quiet),
    )
    rows = list(chosen.manifest.rows())
    with _checkpoints(output) as folder:
        classifier.fit(
            [row.path for row in rows],
            [row.class_name for row in rows],
            [row.environment for row in rows],
            validation=chosen.validation,
            checkpoints=folder,
        )
        classifier.save(output, overwrite=force)
    if not quiet:
        _print_learned(screen, classifier, output)
        screen.print(f"\nTry it:\n  {_predict_command(output, chosen, cache, device)}", soft_wrap=True)


@contextmanager
def _checkpoints(model: Path) -> Iterator[Path]:
    """A folder beside the model in which training can be continued; only an interruption leaves it there."""
    folder = model.with_name(f".{model.name}.checkpoints")
    try:
        yield folder
    except KeyboardInterrupt:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _words_in_use(names: tuple[str, ...], words: tuple[str, ...], ids) -> dict[str, str]:
    return {names[i]: words[i] for i in sorted(set(ids.tolist()))}


def _print_found(screen, chosen: "TrainingData") -> None:
    from bayescal.cli.screen import count, plain_table

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


def _print_learned(screen, classifier: "FewShotClassifier", output: Path) -> None:
    from bayescal.cli.screen import count, near, percent

    record, threshold = classifier.record_, classifier.threshold_
    what = f"{classifier.method} on {classifier.backbone}"
    images = count(record["train_images"], "image")
    if record["parameters"]:
        learned = f"Learned {count(record['parameters'], 'number')} from {images}"
    else:
        learned = f"Nothing to learn by gradient from {images}"
    screen.print(f"{learned} in {record['seconds']:.1f} s ({what}).")
    if record["validation_accuracy"] is not None:
        right = percent(record["validation_accuracy"])
        screen.print(f"Validation accuracy: {right} of {count(record['validation_images'], 'image')}.")
        if threshold <= 1:
            screen.print(f'Threshold: {threshold:.3f}; answers with less confidence are called "unsure".')
        else:
            screen.print('Threshold: no validation image was answered correctly, so every answer is called "unsure".')
    screen.print(f"Saved in {near(output)}.", soft_wrap=True)


def _predict_command(output: Path, chosen: "TrainingData", cache: Path | None, device: str) -> str:
    from bayescal.cli.screen import near

    command = ["bayescal", "predict", near(output), near(chosen.unseen or chosen.manifest.paths[0])]
    if cache is not None:
        command += ["--cache", str(cache)]
    if device != "cpu":
        command += ["--device", device]
    return shlex.join(command)
