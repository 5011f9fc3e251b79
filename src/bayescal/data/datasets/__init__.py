"""Data sets by name, of the package and from outside. Adding one here is a file and a line in DATASETS.

    get_dataset("pacs")                            a data set of the package
    get_dataset("my_package.my_module:SHAPES")     an object, by where it can be imported
    get_dataset("shapes")                          a name that an installed distribution declares, or register_dataset

docs/adding-a-dataset.md
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescal.errors import DataError
from bayescal.util.plugins import Plugins
from bayescal.util.references import is_reference, load_reference
from bayescal.util.suggest import did_you_mean

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
GROUP = "bayescal.datasets"  # the entry-point group in which distributions declare data sets
_ALSO = {"coloredcatsdogs": "ccd", "cmnist": "colored-mnist"}


def dataset_names() -> list[str]:
    """The package's data sets."""
    return list(DATASETS)


def outside_datasets() -> list[str]:
    """Names of data sets from outside: registered in this process, or declared by installed distributions."""
    return _outside.names()


def get_dataset(name: str) -> "Dataset":
    """The data set of this name, however it is spelled (OfficeHome, NICO_SUB); else the nearest one is suggested.

    module:attribute is a data set of one's own; from then on it is known by its name.
    """
    if is_reference(name):
        return _outside.register(load_reference(name, "data set", DataError), name)
    known = find_name(name)
    if known is None:
        names = [*DATASETS, *outside_datasets()]
        raise DataError(f"there is no data set {name!r}.{did_you_mean(name, names)} Known: {', '.join(names)}")
    if known in DATASETS:
        module, attribute = DATASETS[known].rsplit(".", 1)
        return getattr(import_module(f"bayescal.data.datasets.{module}"), attribute)
    found = _outside.find(known)
    assert found is not None, f"{known} is a name that find_name gave"
    return found


def register_dataset(dataset: "Dataset") -> "Dataset":
    """Make a data set known by its name in this process: for `bayescal bench`, in `--data NAME=PATH` and elsewhere."""
    return _outside.register(dataset)


def open_dataset(spec: str, path: Path | None = None) -> "tuple[Dataset, Manifest]":
    """A known name and where it lies; or, without a path, any folder, CSV or JSON file."""
    from bayescal.data.datasets.base import describe, read_custom

    if path is not None:
        dataset = get_dataset(spec)
        return dataset, dataset.read(Path(path))
    path = Path(spec).expanduser()
    if path.exists():
        manifest = read_custom(path)
        return describe(path, manifest), manifest
    if is_reference(spec) or find_name(spec) is not None:
        dataset = get_dataset(spec)
        raise DataError(f"{dataset.title}: say where it lies. It comes from: {dataset.source}")
    raise DataError(f"{spec}: is neither a file, a folder nor a data set. Known data sets: {', '.join(DATASETS)}")


def find_name(name: str) -> str | None:
    """The known name that is meant, or None."""
    key = _key(name)
    own = _ALSO.get(key) or next((known for known in DATASETS if _key(known) == key), None)
    return own or next((known for known in outside_datasets() if _key(known) == key), None)


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _checked(found: Any, where: str) -> "Dataset":
    from bayescal.data.datasets.base import Dataset

    if not isinstance(found, Dataset):
        raise DataError(f"{where or 'data set'}: expected a bayescal.data.datasets.base.Dataset, found {found!r}")
    if found.name in DATASETS and found is not get_dataset(found.name):
        raise _outside.taken(found, "one of bayescal's own")
    return found


_outside: "Plugins[Dataset]" = Plugins(
    GROUP, "data set", DataError, DATASETS, _checked, lambda dataset: f"the data set {dataset.title!r}"
)
