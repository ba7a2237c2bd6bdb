"""What this process may use of the machine: its cores."""

from __future__ import annotations

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
