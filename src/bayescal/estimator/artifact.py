"""A trained classifier on disk: a folder with `model.safetensors` and `config.json`, checked when it is read.

Reading never executes anything from the folder: numbers come from safetensors, the rest from JSON. Both files carry
a SHA-256, so a file that was changed or cut short is refused.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescal.errors import ArtifactError
from bayescal.util.atomic import finish_replacing, replacing_folder, sync
from bayescal.util.checksum import checksum, sealed
from bayescal.util.jsonable import jsonable
from bayescal.util.regular import read_file

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "bayescal-model"
FORMAT_VERSION = 3  # 3: with what `Method.prepare` gives, so that prediction needs no text tower
_RENAMED = {1: {"draws": "samples"}, 2: {}}  # older format version → the words that have changed since
AUTO = "auto"  # what `fit` does by default, in the place of a method's name
END_TO_END = "end-to-end"  # the kind of models whose image tower was trained, too
STACKED = "stacked"  # the kind of models that mix several methods
TENSORS, CONFIG = "model.safetensors", "config.json"


def check_output(path: str | Path, overwrite: bool) -> None:
    """Refuse, before any work is done, a path to which a model cannot be written."""
    path = Path(path)
    finish_replacing(path)
    if not path.exists():
        check_place(path.absolute().parent)
        return
    if not overwrite:
        raise ArtifactError(f"{path} exists already: choose another name, or replace it with --force (overwrite=True)")
    strangers = [p.name for p in path.iterdir() if p.name not in (TENSORS, CONFIG)] if path.is_dir() else [path.name]
    if strangers:
        raise ArtifactError(f"{path} holds something else than a model ({strangers[0]}): it is not replaced")


def check_place(folder: Path) -> None:
    """Refuse, before any work is done, a folder in which nothing can be made, or that cannot be made itself."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not existing.is_dir():
        raise ArtifactError(f"{existing} is a file: no folder can be made in it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ArtifactError(f"{existing} cannot be written to: choose another folder, or change its permissions")


def write_artifact(
    path: str | Path, tensors: "dict[str, Tensor]", config: dict[str, Any], overwrite: bool = False
) -> None:
    """Write the folder under a temporary name, then give it its own: at every moment there is a whole model or none.

    One that is there is replaced in one step, or is put back by whoever reads or writes the model next.
    """
    from safetensors.torch import save

    check_output(path, overwrite)
    held, copies = _without_copies({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    blob = save(held)
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **jsonable(config),
        "copies": copies,
        "files": {TENSORS: {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}},
    }
    text = json.dumps(sealed(config), indent=2, ensure_ascii=False, allow_nan=False).encode()
    try:
        with replacing_folder(Path(path)) as draft:
            _write(draft / TENSORS, blob)
            _write(draft / CONFIG, text)
    except OSError as error:
        raise ArtifactError(f"could not write the model to {path}: {error.strerror or error}") from error


def read_artifact(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and config of a model folder, after checking that both are whole and unchanged.

    The config of an older version comes in the words of this one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    finish_replacing(path)
    config = _read_config(path)
    blob = _read_tensors(path / TENSORS, config.get("files"))
    renamed = _RENAMED.get(config["format_version"], {})
    try:
        held = load(blob)
        copies = {n: held[copy["of"]].view(copy["shape"]) for n, copy in config.pop("copies", {}).items()}
        return held | copies, {renamed.get(name, name): value for name, value in config.items()}
    except SafetensorError as error:
        raise ArtifactError(f"{path / TENSORS} does not hold tensors: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"{path / CONFIG}: the copies that it names cannot be made of the tensors") from error


def _without_copies(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors without those that repeat another's numbers, and of which each of these is a copy.

    The members of a stacked model keep the training images, each for itself.
    """
    import torch

    held, copies, names = {}, {}, {}
    for name, tensor in tensors.items():
        content = hashlib.sha256(tensor.flatten().view(torch.uint8).numpy()).digest() if tensor.numel() else b""
        first = names.setdefault((tensor.dtype, content), name)
        if first == name or not tensor.numel():
            held[name] = tensor
        else:
            copies[name] = {"of": first, "shape": list(tensor.shape)}
    return held, copies


def _read_config(path: Path) -> dict[str, Any]:
    """As it was written, without its checksum."""
    file = path / CONFIG
    if not file.is_file():
        raise ArtifactError(f"{path} is not a model: expected a folder with {CONFIG} and {TENSORS}")
    try:
        config = json.loads(file.read_bytes())
        found = checksum(config) if isinstance(config, dict) else ""
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file} is damaged: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ArtifactError(f"{file} does not describe a bayescal model")
    if (version := config.get("format_version")) not in (*_RENAMED, FORMAT_VERSION):
        raise ArtifactError(
            f"{path} has format version {version}, this program reads version {FORMAT_VERSION} and older: "
            "use the bayescal version it was made with, or fit the model again"
        )
    if config.pop("checksum", None) != found:
        raise ArtifactError(f"{file} was changed after it was written: fit the model again")
    return config


def _read_tensors(file: Path, files: Any) -> bytes:
    expected = files.get(TENSORS) if isinstance(files, dict) else None
    if not isinstance(expected, dict) or not {"bytes", "sha256"} <= expected.keys():
        raise ArtifactError(f"{file.with_name(CONFIG)} does not say what {TENSORS} holds: fit the model again")
    try:
        blob = read_file(file)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    if len(blob) != expected["bytes"]:
        raise ArtifactError(f"{file} has {len(blob)} bytes, expected {expected['bytes']}: it was cut short or replaced")
    if hashlib.sha256(blob).hexdigest() != expected["sha256"]:
        raise ArtifactError(f"{file} was changed after it was written: fit the model again")
    return blob


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)
