"""Standard input and output as commands need them: there, and able to take any name."""

import codecs
import io
import os
import sys

_ESCAPE = "bayescal.escape"


def prepare() -> None:
    """Once, before anything is printed.

    A stream that was closed by whoever started the command is nowhere: without it, the next file that is opened would
    take its number, and what is printed would end up in that file. Letters that the output cannot hold (ASCII,
    Latin-1; names that are not UTF-8) are written as in JSON, so that JSON stays JSON.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (as long as the process)
    codecs.register_error(_ESCAPE, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPE)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names, as the system gives them


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end
