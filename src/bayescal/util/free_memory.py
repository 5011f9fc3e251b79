"""How much memory is free: of the machine, and within a container's limit. Without torch, which readers do not load."""

from pathlib import Path

UNKNOWN = 3 * 2**30  # what is taken to be free where the system does not say


def free_bytes() -> int:
    """Bytes that this process could still take without swapping."""
    limits = [limit for limit in (_available(), _left_in_group()) if limit is not None]
    return max(min(limits, default=UNKNOWN), 0)


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
