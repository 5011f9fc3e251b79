"""Reading the tensors of a TorchScript archive (the format of OpenAI's CLIP files) without running its code.

`torch.jit.load` would compile the program inside the archive and, like any loader of programs, trust the file.
Only its data are wanted here: the archive is a zip file, `data.pkl` describes the module tree, and `data/<key>`
holds the bytes of one storage. The unpickler below can build those tensors, dictionaries and inert place
holders, nothing else; every other name in the pickle is an error.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_torchscript(path: Path) -> bool:
    """Tell a TorchScript archive from the zip files of `torch.save`: only the former carries constants."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.count("/") == 1 and name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """All parameters and buffers of the archived module under their state-dict names."""
    with zipfile.ZipFile(path) as archive:
        root = next(name.split("/")[0] for name in archive.namelist() if name.endswith("/constants.pkl"))
        module = _Reader(archive, root).load()
    return dict(_tensors(module))


class _Module:
    """Stands for any class of the archived program; keeps the attributes it was saved with."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class _Reader(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str):
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive, self.root = archive, root
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":  # typed lists and dictionaries: the plain value comes first
            return _first
        raise pickle.UnpicklingError(f"the archive refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, _ = pid  # "storage", type, key, device it was saved from, number of entries
        if key not in self.storages:
            data = bytearray(self.archive.read(f"{self.root}/data/{key}"))
            self.storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self.storages[key]

    @staticmethod
    def _tensor(storage: Tensor, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
        return storage.as_strided(size, stride, offset)


def _first(value: Any, *_: Any) -> Any:
    return value


def _tensors(module: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in getattr(module, "attributes", {}).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
