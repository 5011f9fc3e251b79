"""Where a training stands, on disk: one safetensors file, written whole, read only by the training it belongs to.

The file carries a checksum of all that is in it. Whatever is wrong with it, the training starts anew and says so: a
model that was continued from damaged numbers would be another model, and nobody would know.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from bayescal.engine.digest import digest
from bayescal.engine.params import Params
from bayescal.errors import BayescalWarning
from bayescal.util.tensor_file import write_tensors

Groups = dict[str, Params]  # name of a group → its tensors; stored as "group/name"


def write_checkpoint(path: Path, identity: str, groups: Mapping[str, Params], metadata: Mapping[str, str]) -> None:
    """Write groups of tensors and what else is to be remembered; `identity` names the training.

    A file that cannot be written is a warning: the training itself is fine, it only cannot be continued.
    """
    from safetensors import SafetensorError

    flat = {f"{group}/{n}": t.detach().cpu().contiguous() for group, ts in groups.items() for n, t in ts.items()}
    try:
        write_tensors(path, flat, _sealed({"identity": identity, **metadata}, flat))
    except (OSError, SafetensorError) as error:
        warnings.warn(f"could not write a checkpoint to {path}: {error}", BayescalWarning, stacklevel=3)


def warn_of_older(path: Path, version: int) -> None:
    """Where this training has no checkpoint, say that another in the folder is of an older version of bayescal.

    Identities begin with the version of checkpoints. An older one belongs to a training that went another way.
    """
    from safetensors import SafetensorError, safe_open

    if path.is_file():
        return
    for other in sorted(path.parent.glob(f"*{path.suffix}")):
        try:
            with safe_open(other, framework="pt") as file:
                found = (file.metadata() or {}).get("identity", "").partition("/")[0]
        except (SafetensorError, OSError):
            continue
        if found.isdigit() and int(found) < version:
            warnings.warn(
                f"{other} is of an older version of bayescal, whose training went another way: it is not continued, "
                "the training starts anew",
                BayescalWarning,
                stacklevel=3,
            )
            return


def read_checkpoint(
    path: Path, identity: str, device: torch.device | str = "cpu"
) -> tuple[Groups, dict[str, str]] | None:
    """Groups and metadata of a checkpoint of this very training; None if there is no such file, or not a whole one."""
    if not path.is_file():
        return None
    try:
        metadata, tensors = _read_whole(path)
    except Exception as error:  # a damaged file can end in any kind of error
        warnings.warn(f"{path} is not continued, the training starts anew: {error}", BayescalWarning, stacklevel=4)
        return None
    if metadata["identity"] != identity:
        return None
    groups: Groups = {}
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = tensor.to(device)
    return groups, metadata


def _read_whole(path: Path) -> tuple[dict[str, str], Params]:
    """Metadata and tensors, or an exception."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if "digest" not in metadata:
        raise ValueError("it has no checksum, as those of older versions")
    if _sealed(metadata, tensors) != metadata:
        raise ValueError("it is not as it was written")
    return metadata, tensors


def _sealed(metadata: Mapping[str, str], tensors: Params) -> dict[str, str]:
    """The metadata with a digest of itself and of the tensors."""
    content = {name: value for name, value in metadata.items() if name != "digest"}
    return {**content, "digest": digest(json.dumps(content, sort_keys=True), tensors)}
