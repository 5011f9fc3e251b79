"""Reading data sets that a maker of `data/makers/` wrote: a folder with a manifest.csv, or that file itself."""

from pathlib import Path

from bayescal.data.datasets.trees import Expected
from bayescal.data.makers.folder import TABLE
from bayescal.data.manifest import Manifest


def read_made(expected: Expected, path: Path) -> Manifest:
    """The manifest of a made folder, with its parts checked."""
    place = Path(path).expanduser()
    if not expected.is_list(place):
        place = place / TABLE
        if not place.is_file():
            raise expected.refusal(place.parent, f"there is no {TABLE} in it.")
    return check_parts(expected, expected.read_list(place), place)


def check_parts(expected: Expected, manifest: Manifest, place: Path) -> Manifest:
    """Refuse a list without the parts that the makers write: a plain folder would be split otherwise."""
    missing = [split for split in ("train", "val", "test") if not (manifest.splits == split).any()]
    if missing:
        raise expected.refusal(place, f"no image has the split {' or '.join(missing)}.")
    return manifest
