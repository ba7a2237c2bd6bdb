"""The machine: its processor, and what this process may use of it."""

from __future__ import annotations

import math
import os
import platform
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


def cpu_info(key: str) -> str:
    """Return the first value of a key in ``/proc/cpuinfo``, empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def cpu_model() -> str:
    """Return the processor's name, or what the platform says."""
    return cpu_info("model name") or platform.processor() or platform.machine()
