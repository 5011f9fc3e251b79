"""`bayescal methods`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from bayescal.methods.contract import Method

# What a method says it can do, in words; the attributes are those of the contract.
_ABILITIES = {
    "has_posterior": "has a posterior",
    "reads_new_names": "predicts names that were not in training",
    "end_to_end": "trains an image model too",
}


def methods(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table of the README: name, what is learned, whose idea.")
    ] = False,
) -> None:
    """List the methods: what each learns, how many numbers, what a step costs, its options, whose idea it is.

    Pass a name to `bayescal fit --method`, and options as `--set name=value`. Methods of installed distributions are
    listed too; a class of your own is `--method module:Class`.
    """
    from rich.table import Table
    from rich.text import Text

    from bayescal.cli.screen import note, out
    from bayescal.errors import BayescalError
    from bayescal.methods import find_method, outside_names
    from bayescal.methods.describe import methods_table
    from bayescal.methods.parameter_count import TASK
    from bayescal.methods.registry import BUILT_IN

    if markdown:
        typer.echo(methods_table())
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for name in (*BUILT_IN, *outside_names()):
        try:
            table.add_row(Text(name, style="bold"), _about(find_method(name)).append("\n"))
        except BayescalError as error:  # one that cannot be loaded is no reason not to list the others
            note(str(error))
    out().print(table)
    out().print(f"Numbers are counted for {TASK}.")


def _about(method: "type[Method]") -> "Text":
    from rich.text import Text

    from bayescal.methods.parameter_count import learned_numbers

    about = Text(f"learns {method.learns}")
    numbers = learned_numbers(method) if method.on_features else None
    if numbers is not None:
        about.append(f" ({numbers:,} numbers)")
    about.append(f"\na step costs: {method.cost}\noptions: {', '.join(method.space)}")
    can = [words for attribute, words in _ABILITIES.items() if getattr(method, attribute)]
    if can:
        about.append(f"\n{'; '.join(can)}")
    return about.append(f"\n{method.citation}", style="dim")
