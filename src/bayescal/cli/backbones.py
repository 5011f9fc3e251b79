"""`bayescal backbones`."""

from typing import Annotated

import typer


def backbones(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Only this one, with what is known of it.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, not only the well-known ones.")] = False,
) -> None:
    """List the vision-language models that a classifier can be built on, or say more of one: `bayescal backbones mini`.

    Pass a name to `bayescal fit --backbone`, or ARCH:/path/to/file for weights that you have on disk.
    """
    from bayescal.backbones import list_backbones
    from bayescal.backbones.catalogue import WELL_KNOWN
    from bayescal.cli.screen import out, plain_table

    if name is not None:
        _print_one(name)
        return
    known = list_backbones()
    shown = known if everything else [info for info in known if info.name in WELL_KNOWN]
    table = plain_table("name", "image", "width", "here", "weights from", numbers=("image", "width"))
    for info in shown:
        here = "yes" if info.available else "no"
        source = info.origin.removeprefix("hf-hub ")
        table.add_row(info.name, f"{info.image_size} px", str(info.dim), here, source)
    screen = out()
    screen.print(table)
    if len(shown) < len(known):
        screen.print(f"{len(known) - len(shown)} more: bayescal backbones --all")
    screen.print("Those that are not here are downloaded, mostly from huggingface.co, when they are first used.")


def _print_one(name: str) -> None:
    """The card of mini; of others, where they come from and whether they are here."""
    from bayescal.backbones import describe_backbone, mini
    from bayescal.cli.screen import out

    screen = out()
    if mini.is_mini(name):
        # Its tables are lists of words and numbers: as written, they are read better than as boxes on a narrow screen.
        screen.print(mini.CARD.read_text(encoding="utf-8").rstrip(), markup=False, soft_wrap=True)
        return
    for what, said in describe_backbone(name).items():
        screen.print(f"{what}: {said}", markup=False, soft_wrap=True)
