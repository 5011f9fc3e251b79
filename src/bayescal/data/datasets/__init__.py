"""Data sets by name. Adding one is a file here and a line in DATASETS (see docs/adding-a-dataset.md)."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.errors import DataError

if TYPE_CHECKING:
    from bayescal.data.datasets.base import Dataset
    from bayescal.data.manifest import Manifest

DATASETS = {
    "pacs": "pacs.PACS",
    "vlcs": "vlcs.VLCS",
    "office-home": "office_home.OFFICE_HOME",
    "nico": "nico.NICO",
    "nico-sub": "nico_sub.NICO_SUB",
    "ccd": "colored_cats_dogs.CCD",
    "colored-mnist": "colored_mnist.COLORED_MNIST",
    "office-caltech10": "office_caltech10.OFFICE_CALTECH10",
    "domainnet": "domainnet.DOMAINNET",
}
_ALSO = {"coloredcatsdogs": "ccd", "cmnist": "colored-mnist"}


def dataset_names() -> list[str]:
    return list(DATASETS)


def get_dataset(name: str) -> "Dataset":
    """The data set of this name, however it is spelled (OfficeHome, NICO_SUB); else the nearest one is suggested."""
    known = find_name(name)
    if known is None:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), DATASETS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"there is no data set {name!r}.{hint} Known: {', '.join(DATASETS)}")
    module, attribute = DATASETS[known].rsplit(".", 1)
    return getattr(import_module(f"bayescal.data.datasets.{module}"), attribute)


def open_dataset(spec: str, path: Path | None = None) -> "tuple[Dataset, Manifest]":
    """A known name and where it lies; or, without a path, any folder, CSV or JSON file."""
    from bayescal.data.datasets.base import describe, read_custom

    if path is not None:
        dataset = get_dataset(spec)
        return dataset, dataset.read(Path(path))
    place = Path(spec).expanduser()
    if place.exists():
        manifest = read_custom(place)
        return describe(place, manifest), manifest
    if find_name(spec) is not None:
        dataset = get_dataset(spec)
        raise DataError(f"{dataset.title}: say where it lies. It comes from: {dataset.source}")
    raise DataError(f"{spec}: is neither a file, a folder nor a data set. Known data sets: {', '.join(DATASETS)}")


def find_name(name: str) -> str | None:
    """The known name that is meant, or None."""
    key = _key(name)
    return _ALSO.get(key) or next((known for known in DATASETS if _key(known) == key), None)


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")
