"""A trained classifier on disk: a folder with `model.safetensors` and `config.json`, checked when it is read.

Reading never executes anything from the folder: numbers come from safetensors, the rest from JSON. Both files carry
a SHA-256, so a file that was changed or cut short is refused.
"""

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from bayescal.errors import ArtifactError

FORMAT = "bayescal-model"
FORMAT_VERSION = 1
TENSORS, CONFIG = "model.safetensors", "config.json"


def check_output(path: str | Path, overwrite: bool) -> None:
    """Refuse, before any work is done, a place where a model cannot be written."""
    path = Path(path)
    if not path.exists():
        _check_place(path.absolute().parent)
        return
    if not overwrite:
        raise ArtifactError(f"{path} exists already: choose another name, or replace it with --force (overwrite=True)")
    strangers = [p.name for p in path.iterdir() if p.name not in (TENSORS, CONFIG)] if path.is_dir() else [path.name]
    if strangers:
        raise ArtifactError(f"{path} holds something else than a model ({strangers[0]}): it is not replaced")


def _check_place(parent: Path) -> None:
    existing = next(place for place in (parent, *parent.parents) if place.exists())
    if not existing.is_dir():
        raise ArtifactError(f"{existing} is a file: no folder can be made in it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ArtifactError(f"{existing} cannot be written to: choose another place, or change its permissions")


def write_artifact(path: str | Path, tensors: dict[str, Any], config: dict[str, Any], overwrite: bool = False) -> None:
    """Write the folder under a temporary name, then rename it: there is a whole model or none."""
    from safetensors.torch import save

    check_output(path, overwrite)
    path = Path(path).resolve()  # a link stays a link: what it points to is replaced
    blob = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **_finite(config),
        "files": {TENSORS: {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}},
    }
    config["checksum"] = _checksum(config)
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False).encode()
    mark = secrets.token_hex(4)
    temporary, retired = path.with_name(f".{path.name}.{mark}.tmp"), path.with_name(f".{path.name}.{mark}.old")
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        temporary.mkdir(parents=True)
        _write(temporary / TENSORS, blob)
        _write(temporary / CONFIG, text)
        if path.exists():
            os.replace(path, retired)
        os.replace(temporary, path)
    except OSError as error:
        raise ArtifactError(f"could not write the model to {path}: {error.strerror or error}") from error
    finally:
        if retired.exists() and not path.exists():  # the second renaming failed: the old model comes back
            os.replace(retired, path)
        for folder in (temporary, retired):
            shutil.rmtree(folder, ignore_errors=True)
        if not path.exists():
            for parent in new_parents:
                with contextlib.suppress(OSError):
                    parent.rmdir()


def read_artifact(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and config of a model folder, after checking that both are whole and unchanged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not (path / CONFIG).is_file():
        raise ArtifactError(f"{path} is not a model: expected a folder with {CONFIG} and {TENSORS}")
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except OSError as error:
        raise ArtifactError(f"{path / CONFIG} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path / CONFIG} is damaged: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ArtifactError(f"{path / CONFIG} does not describe a bayescal model")
    if config.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {config.get('format_version')}, this program reads version {FORMAT_VERSION}: "
            "use the bayescal version it was made with, or fit the model again"
        )
    if config.pop("checksum", None) != _checksum(config):
        raise ArtifactError(f"{path / CONFIG} was changed after it was written: fit the model again")
    expected = config["files"][TENSORS]
    try:
        blob = (path / TENSORS).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path / TENSORS} cannot be read: {error.strerror}") from error
    if len(blob) != expected["bytes"]:
        raise ArtifactError(
            f"{path / TENSORS} has {len(blob)} bytes, expected {expected['bytes']}: it was cut short or replaced"
        )
    if hashlib.sha256(blob).hexdigest() != expected["sha256"]:
        raise ArtifactError(f"{path / TENSORS} was changed after it was written: fit the model again")
    try:
        return load(blob), config
    except SafetensorError as error:
        raise ArtifactError(f"{path / TENSORS} does not hold tensors: {error}") from error


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _checksum(config: dict[str, Any]) -> str:
    canonical = json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
