"""Every way a command can end, in one place: messages, exit codes, and no traceback that is not a bug's."""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from bayescal.cli.screen import note, say
from bayescal.errors import BayescalError, BayescalWarning
from bayescal.util.tensor_file import refused_by_disk

USER_ERROR, BUG, INTERRUPTED = 2, 1, 130
RENAMED_OPTIONS = {"--draws": "--samples", "--rows": "--max-runs"}  # what version 0.1 called them
RESUMABLE = ("fit", "evaluate", "bench")
SHOWN_NOTES = 12  # a data set with 200 classes could have a note about each of them

# What the machine refuses and the user can put right, with the words for it.
_DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_REFUSED = (*_DISK_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, errno.EFBIG)
_ADVICE = {
    errno.ENAMETOOLONG: "choose a shorter one (a file system takes 255 bytes)",
    errno.EFBIG: "files may not grow that large here (`ulimit -f` says how large)",
    errno.EIO: "the disk or the network behind it has failed",
}
_FOREIGN = ("PIL", "matplotlib")  # libraries whose warnings say nothing to the user of a command
_FULL = "the disk is full{where}. Make room and run the same command again; finished features are kept"


@contextmanager
def reported(ctx: Any) -> Iterator[None]:
    """Show warnings as notes; turn exceptions into a message on stderr and an exit code."""
    try:
        _check_here()
        with _notes():
            yield
    except (typer.Exit, typer.Abort):
        raise
    except BayescalError as error:
        _debug_traceback()
        say("Error", str(error), "bold red")
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as error:
        resumable = ctx.invoked_subcommand in RESUMABLE
        say("Stopped", "interrupted; the same command continues" if resumable else "interrupted", "bold yellow")
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BUG) from None
    except Exception as error:
        if message := _refusal(error):
            _debug_traceback()
            say("Error", message, "bold red")
            raise typer.Exit(USER_ERROR) from error
        if _is_usage_error(error):
            if message := _renamed(error):
                say("Error", message, "bold red")
                raise typer.Exit(USER_ERROR) from error
            raise
        traceback.print_exc()
        say("Bug", "this should not happen. Please report it with the lines above.", "bold red")
        raise typer.Exit(BUG) from error


@contextmanager
def _notes() -> Iterator[None]:
    """Print each `BayescalWarning` once, as it comes.

    Warnings of libraries that draw and decode are not shown: what is wrong with an image, its own message says. Others
    are left as they are.
    """
    seen: set[str] = set()
    for library in _FOREIGN:
        logging.getLogger(library).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        shown_otherwise = warnings.showwarning
        warnings.simplefilter("always", BayescalWarning)

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, BayescalWarning):
                if _is_of_another(sys._getframe()):
                    return
                shown_otherwise(message, category, *rest, **more)
            elif str(message) not in seen:
                seen.add(str(message))
                if len(seen) <= SHOWN_NOTES:
                    note(str(message))

        warnings.showwarning = show
        try:
            yield
        finally:
            if len(seen) > SHOWN_NOTES:
                note(f"and {len(seen) - SHOWN_NOTES} more like these")


def _check_here() -> None:
    """Paths are looked up from the current folder, which another process may have deleted."""
    try:
        os.getcwd()
    except OSError as error:
        raise BayescalError(
            "the folder that this command was started in does not exist any more: go to one that does (cd), and start "
            "it again"
        ) from error


def _is_of_another(frame: FrameType | None) -> bool:
    """Whether a library of `_FOREIGN` is at work in this frame or one that called it."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _FOREIGN:
            return True
        frame = frame.f_back
    return False


def _refusal(error: Exception) -> str | None:
    """What to tell the user when the machine refused something, as opposed to a bug."""
    if type(error).__name__ == "SafetensorError":
        error = refused_by_disk(error) or error
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in _DISK_FULL:
            return _FULL.format(where=where)
        advice = f". {_ADVICE[error.errno].capitalize()}" if error.errno in _ADVICE else ""
        return f"{error.filename or 'a file'}: {error.strerror}{advice}"
    return None


def _is_usage_error(error: Exception) -> bool:
    # By name: Typer carries a click of its own, which is not the one that can be imported.
    return any(cls.__name__ == "ClickException" for cls in type(error).__mro__)


def _renamed(error: Any) -> str | None:
    """What to say of an option that the command does not have, if it has it under another name."""
    asked = getattr(error, "option_name", "")
    now = RENAMED_OPTIONS.get(asked)
    has_it = now is not None and any(now in option.opts for option in error.ctx.command.params)
    return f"{asked} is called {now} now" if has_it else None


def _debug_traceback() -> None:
    if os.environ.get("BAYESCAL_DEBUG"):
        traceback.print_exc()
