"""Reading data sets that a maker of `data/synthetic/` wrote: a folder with a manifest.csv, or that file itself."""

from pathlib import Path

from bayescal.data.datasets.trees import Expected
from bayescal.data.manifest import Manifest
from bayescal.data.synthetic.folder import TABLE


def read_made(expected: Expected, path: Path) -> Manifest:
    """The manifest of a made folder, with its parts checked."""
    path = Path(path).expanduser()
    if not expected.is_list(path):
        path = path / TABLE
        if not path.is_file():
            raise expected.refusal(path.parent, f"there is no {TABLE} in it.")
    return check_parts(expected, expected.read_list(path), path)


def check_parts(expected: Expected, manifest: Manifest, path: Path) -> Manifest:
    """Refuse a list without the parts that the makers write: a plain folder would be split otherwise."""
    missing = [split for split in ("train", "val", "test") if not (manifest.splits == split).any()]
    if missing:
        raise expected.refusal(path, f"no image has the split {' or '.join(missing)}.")
    return manifest
