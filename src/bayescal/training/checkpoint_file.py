"""Where a training stands, on disk: one safetensors file, written whole, read only by the training it belongs to."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from bayescal.engine.params import Params
from bayescal.errors import BayescalWarning
from bayescal.util.atomic import replacing

Groups = dict[str, Params]  # name of a group → its tensors; stored as "group/name"


def write_checkpoint(path: Path, identity: str, groups: Mapping[str, Params], metadata: Mapping[str, str]) -> None:
    """Write groups of tensors and what else is to be remembered; `identity` names the training.

    A file that cannot be written is a warning: the training itself is fine, it only cannot be continued.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    flat = {f"{group}/{n}": t.detach().cpu().contiguous() for group, ts in groups.items() for n, t in ts.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            save_file(flat, draft, metadata={"identity": identity, **metadata})
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
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                return None
            tensors = {key: file.get_tensor(key).to(device) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    groups: Groups = {}
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = tensor
    return groups, metadata
