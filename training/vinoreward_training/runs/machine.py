"""What a figure was measured on: processor, system, versions and commit, as plain data."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "vinoreward",
    "gymnasium",
    "numpy",
    "openvino",
    "pillow",
    "warp-lang",
    "pybullet",
    "onnxruntime",
    "torch",
    "torchvision",
    "onnx",
    "nncf",
    "stable-baselines3",
)
"""Distributions whose versions bear on the figures."""

CPU_FEATURES = {
    "avx2": "avx2",
    "avx512": "avx512f",
    "vnni": "avx512_vnni",
    "avx-vnni": "avx_vnni",
    "bf16": "avx512_bf16",
    "amx": "amx_tile",
}
"""Name for people to flag in ``/proc/cpuinfo``."""


def cpu_model() -> str:
    """Return the processor's name, or what the platform says."""
    for line in _cpu_info():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> dict[str, bool]:
    """Return which instructions that matter to inference the processor has (Linux only)."""
    flags: set[str] = set()
    for line in _cpu_info():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    return {name: flag in flags for name, flag in CPU_FEATURES.items()}


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


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Return each distribution's installed version, None where it is missing."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def git_commit(file: Path | None = None) -> str | None:
    """Return the commit this code is at (with ``-dirty`` for changes), None outside of git.

    Installed into an environment that lies in somebody's repository, the code has no commit.
    """
    here = Path(__file__).resolve() if file is None else file
    commands = (
        ["git", "ls-files", "--error-unmatch", here.name],
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
    )
    output = ""
    for command in commands:
        try:
            output = subprocess.run(
                command, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None
    return output.strip() or None


def describe_machine() -> dict[str, object]:
    """Return processor, cores, system, Python, versions and commit as plain data for JSON."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "cpu_features": cpu_features(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": package_versions(),
        "commit": git_commit(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def resident_bytes() -> int:
    """Return this process's resident memory in bytes (its peak where there is no ``/proc``)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_info() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
