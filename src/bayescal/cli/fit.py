"""`bayescal fit`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bayescal.cli.layout_options import ClassFromName, Columns, Data, Layout, read_data
from bayescal.cli.options import END_TO_END, Cache, Device, Force, VisionWeights
from bayescal.util.seeds import LARGEST_SEED

_LEARN, _DATA, _RUN = "What to learn", "Images and names", "Running"


def fit(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="The folder to write.", show_default=False)
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="auto and bayes-cal-mixed mix several; or one of `bayescal methods`, or module:Class. Default: auto; "
            "end to end: erm.",
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
            help="Settings of one method to try, by likelihood on left-out environments; the first are the defaults.",
            rich_help_panel=_LEARN,
        ),
    ] = 1,
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="Models to train and average (an ensemble).", rich_help_panel=_LEARN)
    ] = 1,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Fit a temperature on validation images (auto has one).", rich_help_panel=_LEARN
        ),
    ] = False,
    samples: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Posterior samples in prediction; 0: the mean alone.", rich_help_panel=_LEARN
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
            help="Images per class to learn from, over all environments (one method: as many more to validate). "
            "Default: all.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    val_shots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Validation images per class, for one method. Default: as many as --shots.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="ENV", help="An environment not to learn from; may be repeated.", rich_help_panel=_DATA),
    ] = None,
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
    class_words: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help='What to call a class: {"n02084071": "dog"}.', rich_help_panel=_DATA),
    ] = None,
    environment_words: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="What to call an environment.", rich_help_panel=_DATA),
    ] = None,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Train a whole image model from pixels.", rich_help_panel=END_TO_END)
    ] = False,
    vision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The timm model to train, such as resnet50.", rich_help_panel=END_TO_END),
    ] = None,
    vision_weights: VisionWeights = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=LARGEST_SEED, help="Fixes the split and every random number.", rich_help_panel=_RUN
        ),
    ] = 1,
    cache: Cache = None,
    device: Device = "auto",
    force: Force = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print notes and errors only.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Learn a classifier from a handful of images per class and environment.

    By default a few methods are trained without each environment in turn and on all images, and mixed by how well they
    did where they had not been; the same images tell what to expect in an environment that nobody has looked at. When
    time matters, one fast method: --method logistic-regression.

    Splits that DATA names are respected: train images are learned from, val images choose and calibrate, test images
    are never touched. Interrupted, the same command continues where it was.
    """
    from bayescal.cli.options import import_from_here, parse_settings, read_words
    from bayescal.cli.screen import out, shows_progress
    from bayescal.data import Reading
    from bayescal.errors import BayescalError
    from bayescal.estimator.artifact import AUTO, check_output
    from bayescal.estimator.members import MIXTURES

    check_output(output, force)
    output, reading = Path(os.path.abspath(output)), Reading(layout, class_from_name, columns)
    import_from_here(method or "")
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
            read_data(data, reading),
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
    method = method or AUTO
    words = read_words(class_words, "--class-words"), read_words(environment_words, "--environment-words")
    if method in MIXTURES and settings:
        raise BayescalError(f"--set {settings[0]}: {method} mixes several methods; choose one with --method to set it")
    options = parse_settings(method, settings or []) if method not in MIXTURES else {}

    from bayescal.cli.fit_screen import checkpoint_folder, print_expected, print_found, print_learned, print_next
    from bayescal.estimator.training_data import choose_training_data
    from bayescal.features import AUTO as AUTO_CACHE

    manifest = read_data(data, reading, *words)
    chosen = choose_training_data(
        manifest, leave_out or [], shots, val_shots, seed, cache or AUTO_CACHE, progress=shows_progress(quiet)
    )
    screen = out()
    if not quiet:
        print_found(screen, chosen)

    from bayescal.cli.options import taken_device
    from bayescal.estimator.classifier import FewShotClassifier

    classifier = FewShotClassifier(
        method,
        backbone,
        shots=shots,
        val_shots=val_shots,
        trials=trials,
        members=members,
        calibrate=calibrate,
        samples=samples,
        views=views,
        options=options,
        seed=seed,
        cache=cache or AUTO_CACHE,
        device=taken_device(device),
        verbose=shows_progress(quiet),
    )
    with checkpoint_folder(output, goes_after=BaseException) as folder:
        classifier.fit(chosen, checkpoints=folder)
        classifier.save(output, overwrite=force)
    if not quiet:
        record = classifier.record_
        print_learned(screen, _describe(record, method, backbone), record, classifier.threshold_, output)
        if classifier.expected_ is not None:
            print_expected(screen, classifier.expected_, record)
        print_next(screen, output, chosen, cache, device, method)


def _describe(record: dict[str, Any], method: str, backbone: str) -> str:
    from bayescal.cli.screen import count

    images = count(record["train_images"], "image")
    if "members" in record:
        learned = f"Mixed {count(len(record['members']), 'model')} learned from {images}"
    elif record["parameters"]:
        learned = f"Learned {count(record['parameters'], 'number')} from {images}"
    else:
        learned = f"Nothing to learn by gradient from {images}"
    return f"{learned} in {record['seconds']:.1f} s ({method} on {backbone})."
