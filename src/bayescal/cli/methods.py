"""`bayescal methods`."""


def methods() -> None:
    """List the methods: what each learns, how many numbers, what a step costs, its options, whose idea it is.

    Pass a name to `bayescal fit --method`, and options as `--set name=value`.
    """
    from rich.table import Table
    from rich.text import Text

    from bayescal.cli.screen import out
    from bayescal.end_to_end.algorithms import get_algorithm
    from bayescal.methods import PIXEL_METHODS, get_method, method_names
    from bayescal.methods.census import TASK, learned_numbers

    table = Table.grid(padding=(0, 2, 0, 0))
    for name in (*method_names(), *PIXEL_METHODS):
        method = get_algorithm(name) if name in PIXEL_METHODS else get_method(name)
        said = {attribute: getattr(method, attribute, "") for attribute in ("learns", "cost", "citation")}
        about = Text(f"learns {said['learns'] or '–'}")
        if name not in PIXEL_METHODS:
            about.append(f" ({learned_numbers(name):,} numbers)")
        about.append(f"\na step costs: {said['cost'] or '–'}\noptions: {', '.join(method.space)}")
        if said["citation"]:
            about.append(f"\n{said['citation']}", style="dim")
        table.add_row(Text(name, style="bold"), about.append("\n"))
    out().print(table)
    out().print(f"Numbers are counted for {TASK}.")
