"""`bayescal backbones`."""

from typing import Annotated

import typer

# The embedded one and those that most papers use.
WELL_KNOWN = (
    "mini",
    "RN50:openai",
    "RN101:openai",
    "ViT-B-32:openai",
    "ViT-B-16:openai",
    "ViT-L-14:openai",
    "ViT-B-32:laion2b_s34b_b79k",
    "ViT-B-16:laion2b_s34b_b88k",
    "ViT-B-16:datacomp_xl_s13b_b90k",
    "ViT-L-14:datacomp_xl_s13b_b90k",
)


def backbones(
    everything: Annotated[bool, typer.Option("--all", help="All of them, not only the well-known ones.")] = False,
) -> None:
    """List the vision-language models that a classifier can be built on.

    Pass a name to `bayescal fit --backbone`, or ARCH:/path/to/file for weights that you have on disk.
    """
    from bayescal.backbones import list_backbones
    from bayescal.cli.screen import out, plain_table

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
