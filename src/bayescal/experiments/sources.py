"""Where the data of an experiment come from: `--data` as the user gave it, and arenas opened when they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.data.datasets import dataset_names, find_name, get_dataset, open_dataset
from bayescal.errors import DataError
from bayescal.protocol.arena import Arena, open_arena, portable_name
from bayescal.protocol.bundle import SUFFIX, bundled_name, load_bundle

if TYPE_CHECKING:
    import torch

    from bayescal.backbones.base import Backbone
    from bayescal.cluster import Cluster


@dataclass
class Sources:
    """Data sets by name and how to open them."""

    places: dict[str, Path]  # name → folder, CSV, JSON or bundle
    backbone: str
    seeds: Sequence[int]
    device: str = "cpu"
    cache: Path | None = None
    shots: int | None = None
    val_shots: int | None = None
    progress: bool = False
    cluster: "Cluster | None" = None  # encodes what the cache does not have
    precision: "torch.dtype | None" = None  # of the text tower's layers in training
    _open: dict[str, Arena] = field(default_factory=dict, repr=False)
    _backbone: "Backbone | None" = field(default=None, repr=False)

    def arena(self, name: str) -> Arena:
        """The data set with its features; the first call may take minutes, the next ones nothing."""
        if name not in self._open:
            arena = self._load(name)
            self._open[name] = replace(arena, problem=replace(arena.problem, precision=self.precision))
        return self._open[name]

    def _load(self, name: str) -> Arena:
        path = self.place(name)
        if path.suffix == SUFFIX:
            return self._unpack(name, path)
        if self._backbone is None:
            from bayescal.backbones import load_backbone

            self._backbone = load_backbone(self.backbone, device=self.device)
        if name in dataset_names():
            dataset, manifest = open_dataset(name, path)
        else:
            dataset, manifest = open_dataset(str(path))
            dataset = replace(dataset, name=name, title=name)  # as the user calls it
        return open_arena(
            dataset, manifest, self._backbone, self.seeds, shots=self.shots, val_shots=self.val_shots,
            device=self.device, cache=self.cache, progress=self.progress, cluster=self.cluster,
        )  # fmt: skip

    def _unpack(self, name: str, path: Path) -> Arena:
        arena = load_bundle(path, self.device)
        if arena.facts.name != portable_name(self.backbone):
            raise DataError(f"{path}: was packed with the backbone {arena.facts.name}; use --backbone for that one")
        if arena.dataset.name != name:
            raise DataError(f"{path}: holds the data set {arena.dataset.name}; say --data {arena.dataset.name}={path}")
        return replace(arena, shots=self.shots or arena.shots, val_shots=self.val_shots or arena.val_shots, _sets={})

    def place(self, name: str) -> Path:
        if name not in self.places:
            how = f"bayescal data info {name}" if name in dataset_names() else "bayescal data list"
            raise DataError(
                f"no place is known for the data set {name!r}. Say where it is with --data {name}=PATH, or --data "
                f"FOLDER where FOLDER/{name} is; `{how}` says where to get it. Known here: "
                f"{', '.join(self.places) or 'none'}."
            )
        return self.places[name]


def find_places(given: Sequence[str]) -> dict[str, Path]:
    """`--data` values as places: NAME=PATH, or a folder in which named data sets are looked for."""
    places: dict[str, Path] = {}
    for value in given:
        name, equals, path = value.partition("=")
        if equals and not Path(value).exists():
            place = Path(path).expanduser()
            if not place.exists():
                raise DataError(f"--data {value}: there is no folder or file {place}")
            places[known_name(name)] = place
            continue
        folder = Path(value).expanduser()
        if folder.suffix == SUFFIX and folder.is_file():
            places[bundled_name(folder)] = folder
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
            places |= found
    return places


def known_name(name: str) -> str:
    """A named data set by the name it has here (PACS → pacs); a name of the user's own as it is."""
    return find_name(name.strip()) or name.strip()


def _inside(folder: Path) -> dict[str, Path]:
    """Data sets that lie in a folder under their own name, spelled with or without dashes."""
    plain = lambda text: "".join(c for c in text.lower() if c.isalnum())  # noqa: E731
    entries = {plain(path.stem if path.is_file() else path.name): path for path in sorted(folder.iterdir())}
    found = {}
    for name in dataset_names():
        for spelled in (plain(name), plain(get_dataset(name).title)):
            if spelled in entries:
                found.setdefault(name, entries[spelled])
    return found
