"""How much memory one training may take: a share of what is free, and no more than makes it faster."""

import torch

from bayescal.util.free_memory import free_bytes

SHARE = 0.5
# Long before a backward pass keeps this much, the products are so large that more runs or names at once gain nothing.
ENOUGH = {"cpu": 3 * 2**30, "cuda": 12 * 2**30}


def activation_budget(device: torch.device) -> int:
    """Bytes that a training step may keep for its backward pass."""
    return min(ENOUGH.get(device.type, ENOUGH["cpu"]), int(SHARE * free_memory(device)))


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still take on the device."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(min(free, allowed - reserved), 0) + reserved - torch.cuda.memory_allocated(device)
    return free_bytes()
