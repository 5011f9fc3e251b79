"""From a weights file of any common format to a model with these weights, without ever unpickling objects."""

import pickle
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal.backbones.torchscript import is_torchscript, read_torchscript
from bayescal.errors import BackboneError

# Tensors in OpenAI's archives that are not weights. They exist nowhere else, so they tell where a file is from.
_OPENAI_MARKS = ("input_resolution", "context_length", "vocab_size")
# Derived from the architecture, or counters of training: a file may have them or not.
_DERIVED = ("attn_mask", "num_batches_tracked", "position_ids")
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")  # left behind by data-parallel training and torch.compile


@dataclass(frozen=True)
class Weights:
    """The tensors of a file, and whether it is one of OpenAI's (which were all trained with QuickGELU)."""

    tensors: dict[str, Tensor]
    from_openai: bool


def read_weights(path: Path) -> Weights:
    """Read a `.safetensors` file, a `torch.save` file or an OpenAI archive, recognised by content."""
    if not path.exists():
        raise BackboneError(f"there is no weights file {path}")
    if not path.is_file():
        raise BackboneError(f"{path} is not a file; expected a weights file (.pt, .bin or .safetensors)")
    content = _read(path)
    while isinstance(content, Mapping) and (inner := _first_present(content, _CONTAINERS)) is not None:
        content = inner
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    if not tensors:
        raise BackboneError(f"{path} holds no weights; expected a dictionary of tensors (a state dict)")
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): value for name, value in tensors.items()}
    marks = [tensors.pop(mark, None) for mark in _OPENAI_MARKS]
    return Weights(tensors, from_openai=any(mark is not None for mark in marks))


def _read(path: Path) -> Any:
    with open(path, "rb") as stream:
        head = stream.read(512)
    try:
        if head[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
            from safetensors.torch import load_file

            return load_file(path)
        if is_torchscript(path):
            return read_torchscript(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        if head[:2] in (b"PK", b"\x80\x02"):
            raise BackboneError(
                f"{path} is not read because it holds more than tensors, and loading that would run code from "
                "the file. Load it where you trust it and save model.state_dict() alone."
            ) from error
        raise BackboneError(_not_weights(path, head)) from error
    except Exception as error:  # the readers raise their own kinds for damaged files; none is a bug of ours
        raise BackboneError(_not_weights(path, head)) from error


def _not_weights(path: Path, head: bytes) -> str:
    start = head.lstrip().lower()
    hint = ""
    if start.startswith((b"<!doctype", b"<html")):
        hint = ": it is a web page; download the file itself"
    elif start.startswith(b"version https://git-lfs"):
        hint = ": it is a Git LFS pointer; fetch the file it stands for (git lfs pull)"
    elif not start:
        hint = ": it is empty"
    elif head[:2] == b"PK" or head[8:9] == b"{":
        hint = " that can be read: it is damaged or cut short; download it again"
    return f"{path} is not a weights file{hint} (expected .safetensors, a torch state dict or an OpenAI archive)"


def _first_present(content: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((content[key] for key in keys if isinstance(content.get(key), Mapping)), None)


def fit_weights(model: Any, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put weights into an open_clip model as float32; every name and shape must match.

    A model on the device "meta" has no tensors of its own and takes those that are given.
    """
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    state = dict(convert_state_dict(model, dict(tensors)))
    if hasattr(model, "text"):  # models with a replaceable text tower keep it under "text."
        state = convert_to_custom_text_state_dict(state)
    state = {name: value for name, value in state.items() if not name.endswith(_DERIVED)}
    if "logit_bias" in state:
        raise BackboneError(
            f"{source} was trained with a sigmoid loss (it has a logit_bias); its similarities are not meant for "
            "a softmax over classes, which prompt learning uses"
        )
    wanted = {name: value for name, value in model.state_dict().items() if not name.endswith(_DERIVED)}
    if "logit_scale" in state and state["logit_scale"].numel() == 1:  # a number, or a vector of length one
        state["logit_scale"] = state["logit_scale"].reshape(wanted["logit_scale"].shape)
    check_tensors(wanted, state, f"{source} does not fit this architecture")
    empty = next(model.parameters()).is_meta
    model.load_state_dict({name: value.float() for name, value in state.items()}, strict=False, assign=empty)


def check_tensors(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], said: str, may_lack: Collection[str] = ()
) -> None:
    """Refuse tensors that are not those of a model, by name and shape. `said`: what does not fit what."""
    missing = sorted(wanted.keys() - found.keys() - set(may_lack))
    extra = sorted(found.keys() - wanted.keys())
    other = [
        f"{name} is {tuple(found[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & found.keys())
        if found[name].shape != wanted[name].shape
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("missing", missing), ("unexpected", extra), ("of another shape", other))
        if names
    ]
    if problems:
        raise BackboneError(f"{said}; tensors: {'; '.join(problems)}")
