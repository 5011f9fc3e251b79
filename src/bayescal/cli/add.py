"""`bayescal add`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.layout_options import DATA_HELP, ClassFromName, Columns, Layout, read_data
from bayescal.cli.options import Cache, Device, Force, Model, MovedBackbone

if TYPE_CHECKING:
    from rich.console import Console

    from bayescal.data import Manifest, Reading
    from bayescal.estimator.adding import Addition
    from bayescal.estimator.base_predictor import BasePredictor


def add(
    model: Model,
    more: Annotated[str, typer.Argument(metavar="MORE", help=DATA_HELP, show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL2", help="Where the new model goes.", show_default=False)
    ],
    environment: Annotated[
        str | None, typer.Option(metavar="ENV", help="The environment of those of these images that come without one.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Measure what the images changed, on themselves.")
    ] = True,
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
    backbone: MovedBackbone = None,
    cache: Cache = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Teach a model more images: more of the same, a new class, a new environment.

    The model keeps the features of the images it has learned from, so no old image has to exist any more, and it is
    learned anew from all of them in seconds. An image that it has already is relabelled where its label differs.
    """
    from bayescal.cli.options import taken_device
    from bayescal.cli.screen import note, out, shows_progress
    from bayescal.data import Reading
    from bayescal.data.layout import ONLY_ENVIRONMENT
    from bayescal.end_to_end import load_model
    from bayescal.estimator.adding import add_images
    from bayescal.estimator.artifact import check_output
    from bayescal.estimator.labelled_images import LabelledImages
    from bayescal.estimator.training_data import choose_training_data
    from bayescal.features import AUTO, FeatureBank

    check_output(output, force)
    output = Path(os.path.abspath(output))
    manifest = _read(more, Reading(layout, class_from_name, columns, environment))
    chosen = choose_training_data(manifest, [], None, None, 1, cache or AUTO, progress=shows_progress())
    old = load_model(model, backbone, taken_device(device))
    if chosen.manifest.environments == (ONLY_ENVIRONMENT,) and ONLY_ENVIRONMENT not in map(str, old.environments):
        note(
            "the images come without an environment and are taken for one of their own, called "
            f"{ONLY_ENVIRONMENT}; --environment NAME says which they are from"
        )
    bank = FeatureBank(old.backbone, folder=cache or AUTO)
    images = LabelledImages.from_manifest(chosen.manifest, chosen.validation, chosen.contents)
    said = add_images(old, bank, images, compare=compare, verbose=shows_progress())
    said.predictor.save(output, overwrite=force)
    _print(out(), old, said, output)


def _read(more: str, reading: "Reading") -> "Manifest":
    """The images; an environment that none of them is from is said."""
    from bayescal.cli.screen import note

    manifest, environment = read_data(more, reading), reading.environment
    if environment is not None and environment not in manifest.environments:
        note(
            f"every image comes with an environment of its own ({', '.join(manifest.environments[:5])}), so "
            f"--environment {environment} says nothing; --layout */class leaves out what the first folders say"
        )
    return manifest


def _print(screen: "Console", old: "BasePredictor", said: "Addition", output: Path) -> None:
    from bayescal.cli.screen import count, near, percent

    parts = [f"Added {count(said.added, 'image')}"]
    for names, noun in ((said.new_classes, "new class"), (said.new_environments, "new environment")):
        if names:
            parts.append(f"{count(len(names), noun)}: {', '.join(names)}")
    if said.relabelled:
        parts.append(f"{said.relabelled:,} of them known before and relabelled")
    if said.known:
        parts.append(f"{said.known:,} known already and left out")
    screen.print("; ".join(parts) + ".", soft_wrap=True)
    new = said.predictor
    images, before = new.record["train_images"], old.record.get("train_images", 0)
    screen.print(f"Learned anew from {count(images, 'image')} (before: {before:,}) in {new.record['seconds']:.1f} s.")
    if said.before is not None and said.after is not None:
        screen.print(
            f"On {count(said.compared, 'new image')}: {percent(said.before)} right before, {percent(said.after)} "
            "after (each answered by models that had not learned from it).",
            soft_wrap=True,
        )
    for title, model in (("Before", old), ("After", new)):
        if model.expected is not None:
            screen.print(f"{title}: {model.expected.sentence()}", soft_wrap=True)
        elif model.record.get("validation_accuracy") is not None:
            right = percent(model.record["validation_accuracy"])
            screen.print(f"{title}: {right} of {count(model.record['validation_images'], 'validation image')}.")
    screen.print(f"Saved in {near(output)}.", soft_wrap=True)
