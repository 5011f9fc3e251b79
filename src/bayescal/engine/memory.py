"""How much memory one training may take: a share of what is free, and no more than makes it faster."""

from pathlib import Path

import torch

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
    limits = [limit for limit in (_available(), _left_in_group()) if limit is not None]
    return max(min(limits, default=ENOUGH["cpu"]), 0)


def _available() -> int | None:
    """What the system can give without swapping; None where it does not say."""
    lines = _read("/proc/meminfo").splitlines()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _left_in_group() -> int | None:
    """What a container's limit leaves; None without a limit. Cached files count as used there but give way."""
    group = "/sys/fs/cgroup/memory."
    limit, used, stat = (_read(group + name).split() for name in ("max", "current", "stat"))
    if not limit or not used or limit == ["max"]:
        return None
    cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
    return int(limit[0]) - int(used[0]) + cached


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
