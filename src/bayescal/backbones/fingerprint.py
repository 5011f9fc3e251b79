"""A short name for exactly these weights, this architecture and this preprocessing.

Features and trained prompts are valid for one fingerprint only. It is the first 20 hexadecimal digits (80 bits)
of a SHA-256 over

1. the architecture as sorted JSON: open_clip's configuration with the activation in use (`quick_gelu`)
   written out, without the settings that only matter while weights are being fetched,
2. the preprocessing as sorted JSON,
3. for every tensor in alphabetical order: name, type, shape, and bytes (little-endian, row by row), as they
   stand in the float32 model.

File format, file name, device and machine do not enter: the same weights from an archive, a `.bin` or a
`.safetensors` file have the same fingerprint.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayescal.backbones.base import Preprocess

DIGITS = 20
_FETCHING = (
    "timm_model_pretrained",
    "hf_model_pretrained",
)  # say where weights once came from, not what they are


def fingerprint(config: Mapping[str, Any], preprocess: Preprocess, tensors: Mapping[str, Tensor]) -> str:
    """Compute the fingerprint of a model: its open_clip configuration, preprocessing and state dict."""
    digest = hashlib.sha256()
    about = {"architecture": _architecture(config), "preprocess": dataclasses.asdict(preprocess)}
    digest.update(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        if name.endswith("num_batches_tracked"):  # counts training steps; unused once a model is frozen
            continue
        tensor = tensors[name].detach().cpu().contiguous()
        shape = "x".join(map(str, tensor.shape))
        digest.update(f"\n{name} {tensor.dtype} {shape}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:DIGITS]


def _architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cleaned(inner) for key, inner in value.items() if key not in _FETCHING}
        return value

    return {**cleaned(config), "quick_gelu": bool(config.get("quick_gelu", False))}
