"""Where the data of an experiment come from: `--data` as the user gave it, prepared when it is needed."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bayescal.benchmark.bundle import SUFFIX, bundled_dataset, bundled_name, load_bundle
from bayescal.benchmark.prepared import PreparedDataset, portable_name, prepare_dataset
from bayescal.data.datasets import dataset_names, find_name, get_dataset, open_dataset, outside_datasets
from bayescal.data.datasets.base import Dataset, describe
from bayescal.data.file_tree import expand_braces
from bayescal.data.manifest import FOUND_OUT, Manifest, Reading
from bayescal.data.remote import is_url
from bayescal.errors import DataError
from bayescal.util.references import is_reference

if TYPE_CHECKING:
    import torch

    from bayescal.backbones.base import Backbone
    from bayescal.distributed.ray_cluster import Cluster
    from bayescal.features.bank import Encoder


DataPath = str | Path  # a folder, archive, list or bundle on a disk; or a URL, or shards, as text


@dataclass
class Sources:
    """Data sets by name and how to open them."""

    paths: Mapping[str, DataPath]
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
    reading: Reading = FOUND_OUT  # how data sets of one's own are read
    read: Callable[[DataPath, Reading], Manifest] = lambda path, reading: reading.read(path)
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
        return bundled_dataset(Path(path)) if is_bundle(path) else self._list(name)[0]

    def prepared(self, name: str) -> PreparedDataset:
        """The data set with its features; the first call may take minutes, the next ones nothing."""
        if name not in self._open:
            prepared = self._load(name)
            self._open[name] = replace(prepared, problem=replace(prepared.problem, precision=self.precision))
        return self._open[name]

    def path(self, name: str) -> DataPath:
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
        if is_bundle(path):
            return self._unpack(name, Path(path))
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
                self._listed[name] = open_dataset(name, Path(path))
            else:
                manifest = self.read(path, self.reading)
                self._listed[name] = replace(describe(path, manifest), name=name, title=name), manifest
        return self._listed[name]

    def check_reading(self) -> None:
        """Refuse options of reading that nothing would be read by."""
        own = [name for name, path in self.paths.items() if find_name(name) is None and not is_bundle(path)]
        if self.reading.options and not own:
            raise DataError(
                f"{self.reading.options[0]} is for data sets under names of your own (NAME=PATH); "
                f"{', '.join(self.paths)} is read as it is downloaded or was packed"
            )

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


def is_bundle(path: DataPath) -> bool:
    """Whether this names a packed data set."""
    return str(path).endswith(SUFFIX)


def data_paths(data: Mapping[str, DataPath] | Sequence[str]) -> dict[str, DataPath]:
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


def find_paths(given: Sequence[str]) -> dict[str, DataPath]:
    """`--data` values as paths by name: NAME=PATH, a bundle, or a folder in which named data sets are looked for."""
    paths: dict[str, DataPath] = {}
    for value in given:
        name, equals, path = value.partition("=")
        if equals and not is_url(name) and not Path(value).exists():
            paths |= named_path(name, path, f"--data {value}")
            continue
        folder = Path(value).expanduser()
        if is_bundle(folder) and folder.is_file():
            paths[bundled_name(folder)] = folder
        elif not folder.is_dir():
            found = "is none" if is_url(value) or folder.exists() else "there is no such folder"
            raise DataError(f"--data {value}: expected NAME=PATH or a folder that holds data sets; {found}")
        else:
            found = _inside(folder)
            if not found:
                raise DataError(
                    f"--data {value}: holds none of the named data sets ({', '.join(dataset_names())}). For a data set "
                    f"of your own, give it a name: --data NAME={value}"
                )
            paths |= found
    return paths


def named_path(name: str, path: DataPath, said: str) -> dict[str, DataPath]:
    """A data set's known name and where it is; a path must exist. `said`: what the user wrote."""
    name, text = known_name(name), os.path.expanduser(os.fspath(path))
    first = next(iter(expand_braces(text)))
    if is_url(first) and find_name(name) is not None:
        raise DataError(
            f"{said}: {get_dataset(name).title} is read from a disk; only data sets under names of your own may lie "
            "behind a URL"
        )
    if not is_url(first) and not os.path.exists(first):
        raise DataError(f"{said}: there is no folder or file {first}")
    return {name: text if is_url(first) or first != text else Path(text)}


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
