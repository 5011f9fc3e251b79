"""Where what was computed once is kept."""

import os
from pathlib import Path


def default_folder() -> Path:
    """$BAYESCAL_CACHE, or `bayescal` in the user's cache folder."""
    if chosen := os.environ.get("BAYESCAL_CACHE"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "bayescal" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bayescal"
