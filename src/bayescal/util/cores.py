"""How many processors this process may use: what the scheduler allows, or less where a container is limited."""

import os
from pathlib import Path

_LIMITS = (  # of a container: microseconds of processor time, and in how many; version 2 of control groups, then 1
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


def usable_cpus() -> int:
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([here, *(round(limit) for limit in map(_quota, _LIMITS) if limit is not None)]))


def _quota(files: tuple[str, ...]) -> float | None:
    """Processors that a control group may use; None: as many as there are."""
    try:
        quota, period = " ".join(Path(file).read_text() for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file; the word "max"
        return None
