"""The command line. Commands import what they need when they run, so that `bayescal --help` answers at once."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script `bayescal`; ends with `SystemExit`. How errors are shown is decided in failures.py."""
    from bayescal.cli import streams

    streams.prepare()
    from bayescal.cli.app import app

    app(arguments, prog_name="bayescal")
