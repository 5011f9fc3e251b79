"""Where what was computed once is kept."""

import os
from pathlib import Path

AUTO = "auto"  # the user's own cache folder


def default_folder() -> Path:
    """$BAYESCAL_CACHE, or `bayescal` in the user's cache folder."""
    if chosen := os.environ.get("BAYESCAL_CACHE"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "bayescal" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bayescal"


def cache_folder(chosen: str | os.PathLike[str] | None) -> Path | None:
    """The folder that was asked for; "auto": the user's own; None: no cache."""
    if chosen is None:
        return None
    return default_folder() if chosen == AUTO else Path(chosen)
