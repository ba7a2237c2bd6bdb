"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Iterator
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


def free_cores(seconds: float = 0.2) -> int:
    """Return how many threads to compute on: ``OMP_NUM_THREADS``, or else one per free core.

    Free are the :func:`usable_cores` that nobody uses for some ``seconds``, at least 1: a thread
    that shares its core makes the others wait for it, in every layer of a network.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # "4,2" is for nested loops
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    try:
        before = _idle_seconds()
        time.sleep(seconds)
        idle = (_idle_seconds() - before) / seconds
    except (AttributeError, OSError, ValueError, IndexError):  # another system
        return usable_cores()
    return max(1, min(usable_cores(), round(idle)))


def _idle_seconds() -> float:
    """Return for how long the cores of this process have had nothing to do."""
    rows = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = sum(int(row[4]) for row in rows if row and row[0] in mine)
    return ticks / os.sysconf("SC_CLK_TCK")


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


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Parameters of glibc's ``mallopt``."""


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the C library keep freed memory for what comes next; does nothing without glibc.

    A training step frees its large tensors and allocates them anew. glibc gives such memory back to
    the kernel, which zeroes it page by page for the next step: a third of a step's processor time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    trim = None if mallopt is None else getattr(ctypes.CDLL(None), "malloc_trim", None)
    if mallopt is None or trim is None:
        yield
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        # glibc raised these by itself until mallopt was called: set them to the most it takes.
        mallopt(_MMAP_MAX, 65536)
        mallopt(_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_TRIM_THRESHOLD, 64 * 2**20)
        trim(0)
