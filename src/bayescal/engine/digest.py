"""A checksum of tensors and of what is written beside them, for files that count only as they were written."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors on the CPU: names, types, shapes and every byte."""
    found = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
