"""Where the data of an experiment come from: `--data` as the user gave it, prepared when it is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bayescal.benchmark.bundle import SUFFIX, bundled_dataset, bundled_name, load_bundle
from bayescal.benchmark.prepared import PreparedDataset, portable_name, prepare_dataset
from bayescal.data.datasets import dataset_names, find_name, get_dataset, open_dataset, outside_datasets
from bayescal.data.datasets.base import Dataset
from bayescal.data.manifest import Manifest
from bayescal.errors import DataError
from bayescal.util.references import is_reference

if TYPE_CHECKING:
    import torch

    from bayescal.backbones.base import Backbone
    from bayescal.distributed.ray_cluster import Cluster
    from bayescal.features.bank import Encoder


@dataclass
class Sources:
    """Data sets by name and how to open them."""

    paths: Mapping[str, Path]  # name → folder, CSV, JSON or bundle
    backbone: str
    seeds: Sequence[int]
    device: str = "cpu"
    cache: Path | None = None
    shots: int | None = None
    val_shots: int | None = None
    progress: bool = False
    cluster: "Cluster | None" = None  # encodes what the cache does not have
    precision: "torch.dtype | None" = None  # of the text tower's layers in training
    balanced: bool = False  # shots evenly over environments also where the data set keeps its correlation
    _open: dict[str, PreparedDataset] = field(default_factory=dict, repr=False)
    _listed: dict[str, tuple[Dataset, Manifest]] = field(default_factory=dict, repr=False)
    _backbone: "Backbone | None" = field(default=None, repr=False)

    def dataset(self, name: str) -> Dataset:
        """What is known about a data set (title, selection rule, new classes …) without its features."""
        if name in self._open:
            return self._open[name].dataset
        if find_name(name) is not None:
            return get_dataset(name)
        path = self.path(name)
        return bundled_dataset(path) if path.suffix == SUFFIX else self._list(name)[0]

    def prepared(self, name: str) -> PreparedDataset:
        """The data set with its features; the first call may take minutes, the next ones nothing."""
        if name not in self._open:
            prepared = self._load(name)
            self._open[name] = replace(prepared, problem=replace(prepared.problem, precision=self.precision))
        return self._open[name]

    def path(self, name: str) -> Path:
        if name not in self.paths:
            how = f"bayescal data info {name}" if find_name(name) is not None else "bayescal data list"
            raise DataError(
                f"no path is known for the data set {name!r}. Say where it is with --data {name}=PATH, or --data "
                f"FOLDER where FOLDER/{name} is; `{how}` says where to get it. Known here: "
                f"{', '.join(self.paths) or 'none'}."
            )
        return self.paths[name]

    def _load(self, name: str) -> PreparedDataset:
        path = self.path(name)
        if path.suffix == SUFFIX:
            return self._unpack(name, path)
        if self._backbone is None:
            from bayescal.backbones import load_backbone

            self._backbone = load_backbone(self.backbone, device=self.device)
        dataset, manifest = self._list(name)
        return prepare_dataset(
            self._read_as(dataset), manifest, self._backbone, self.seeds, shots=self.shots, val_shots=self.val_shots,
            device=self.device, cache=self.cache, progress=self.progress, encoder=self._encoder(),
        )  # fmt: skip

    def _read_as(self, dataset: Dataset) -> Dataset:
        return replace(dataset, balanced=True) if self.balanced else dataset

    def _encoder(self) -> "Encoder | None":
        """The cluster's, where there is one."""
        if self.cluster is None:
            return None
        from bayescal.distributed.encode import ClusterEncoder  # here: a bundle needs nothing that reads images

        return cast("Encoder", ClusterEncoder(self.cluster))  # of backbones, which is all that experiments have

    def _list(self, name: str) -> tuple[Dataset, Manifest]:
        """A data set that lies in files, and its images."""
        if name not in self._listed:
            path = self.path(name)
            if find_name(name) is not None:
                self._listed[name] = open_dataset(name, path)
            else:
                dataset, manifest = open_dataset(str(path))
                self._listed[name] = replace(dataset, name=name, title=name), manifest  # as the user calls it
        return self._listed[name]

    def _unpack(self, name: str, path: Path) -> PreparedDataset:
        prepared = load_bundle(path, self.device)
        if prepared.backbone_info.name != portable_name(self.backbone):
            raise DataError(
                f"{path}: was packed with the backbone {prepared.backbone_info.name}; use --backbone for that one"
            )
        if prepared.dataset.name != name:
            raise DataError(
                f"{path}: holds the data set {prepared.dataset.name}; say --data {prepared.dataset.name}={path}"
            )
        return replace(
            prepared, dataset=self._read_as(prepared.dataset), shots=self.shots or prepared.shots,
            val_shots=self.val_shots or prepared.val_shots, _splits={},
        )  # fmt: skip


def data_paths(data: Mapping[str, str | Path] | Sequence[str]) -> dict[str, Path]:
    """Data sets by name and where they are: a mapping, or values of `--data`. There must be one."""
    if isinstance(data, Mapping):
        parts = [named_path(name, path, f"data[{name!r}]") for name, path in data.items()]
        found = {name: path for part in parts for name, path in part.items()}
    else:
        found = find_paths([data] if isinstance(data, str) else data)
    if not found:
        raise DataError(
            "no data: say where the data sets are, for example --data pacs=PATH or --data FOLDER with FOLDER/pacs in "
            'it; in Python, data={"pacs": PATH}'
        )
    return found


def find_paths(given: Sequence[str]) -> dict[str, Path]:
    """`--data` values as paths by name: NAME=PATH, a bundle, or a folder in which named data sets are looked for."""
    paths: dict[str, Path] = {}
    for value in given:
        name, equals, path = value.partition("=")
        if equals and not Path(value).exists():
            paths |= named_path(name, path, f"--data {value}")
            continue
        folder = Path(value).expanduser()
        if folder.suffix == SUFFIX and folder.is_file():
            paths[bundled_name(folder)] = folder
        elif not folder.is_dir():
            raise DataError(
                f"--data {value}: expected NAME=PATH or a folder that holds data sets; there is no such folder"
            )
        else:
            found = _inside(folder)
            if not found:
                raise DataError(
                    f"--data {value}: holds none of the named data sets ({', '.join(dataset_names())}). For a data set "
                    f"of your own, give it a name: --data NAME={value}"
                )
            paths |= found
    return paths


def named_path(name: str, path: str | Path, said: str) -> dict[str, Path]:
    """A data set's known name and its path, which must exist. `said`: what the user wrote."""
    found = Path(path).expanduser()
    if not found.exists():
        raise DataError(f"{said}: there is no folder or file {found}")
    return {known_name(name): found}


def known_name(name: str) -> str:
    """A named data set by the name it has here (PACS → pacs, module:SHAPES → shapes); the user's own name as it is."""
    name = name.strip()
    return get_dataset(name).name if is_reference(name) else find_name(name) or name


def _inside(folder: Path) -> dict[str, Path]:
    """Data sets that lie in a folder under their own name, spelled with or without dashes."""
    plain = lambda text: "".join(c for c in text.lower() if c.isalnum())  # noqa: E731
    entries = {plain(path.stem if path.is_file() else path.name): path for path in sorted(folder.iterdir())}
    found = {}
    titles = {name: get_dataset(name).title for name in dataset_names()}  # others are not loaded for a look around
    for name in (*dataset_names(), *outside_datasets()):
        for spelled in (plain(name), plain(titles.get(name, name))):
            if spelled in entries:
                found.setdefault(name, entries[spelled])
    return found
