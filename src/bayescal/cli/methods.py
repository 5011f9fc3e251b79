"""`bayescal methods`."""


def methods() -> None:
    """List the methods: what each learns, what a training step costs, and whose idea it is.

    Pass a name to `bayescal fit --method`.
    """
    from rich.table import Table
    from rich.text import Text

    from bayescal.cli.screen import out
    from bayescal.methods import get_method, method_names

    table = Table.grid(padding=(0, 2, 0, 0))
    for name in method_names():
        method = get_method(name)
        said = {attribute: getattr(method, attribute, "") for attribute in ("learns", "cost", "citation")}
        about = Text(f"learns {said['learns'] or '–'}\na step costs: {said['cost'] or '–'}")
        if said["citation"]:
            about.append(f"\n{said['citation']}", style="dim")
        table.add_row(Text(name, style="bold"), about.append("\n"))
    out().print(table)
