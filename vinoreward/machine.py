"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Return the cores this process may use, a container's share of time considered."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores(), math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        # No such limit ("max"), or another system.
        return cores()


def free_memory() -> int | None:
    """Return the bytes of memory that this process can still have; None if not known.

    The least of what the machine has and what its control group (a container's limit) allows.
    """
    available = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available.append(int(line.split()[1]) * 1024)
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            most, now = ((group / name).read_text(encoding="ascii") for name in (limit, used))
            # The files' cache counts as used and is given back where it is needed.
            stat = ((group / limit).parent / "memory.stat").read_text(encoding="ascii")
            facts = dict(line.split()[:2] for line in stat.splitlines())
            available.append(int(most) - int(now) + int(facts.get("inactive_file", 0)))
    return max(0, min(available)) if available else None
