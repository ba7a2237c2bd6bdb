"""What a figure was measured on: processor, system, versions and commit, as plain data."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vinoreward.machine import cores

PACKAGES = (
    "vinoreward", "gymnasium", "numpy", "openvino", "pillow", "warp-lang", "pybullet",
    "onnxruntime", "torch", "torchvision", "onnx", "nncf", "stable-baselines3",
)  # fmt: skip
"""Distributions whose versions bear on the figures."""

EXTRAS = {
    "panda": ("warp-lang", "pybullet"),
    "onnxruntime": ("onnxruntime",),
    "train": (
        "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "nncf", "scipy",
        "safetensors", "stable-baselines3", "tensorboard", "matplotlib", "imageio",
        "imageio-ffmpeg", "psutil",
    ),
    "dm-control": ("dm-control",),  # it needs MuJoCo itself
    "atari": ("ale-py",),
    "ray": ("ray",),
    "lerobot": ("pyarrow", "av"),
    "timm": ("timm",),
    "hub": ("huggingface-hub",),
    "label": ("h11", "starlette", "uvicorn"),
    "sbx": ("sbx-rl",),
    "skrl": ("skrl",),
}  # fmt: skip
"""Extra to its distributions."""

CPU_FEATURES = {
    "avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni", "avx-vnni": "avx_vnni",
    "bf16": "avx512_bf16", "amx": "amx_tile",
}  # fmt: skip
"""Name for people to flag in ``/proc/cpuinfo``."""


def module_of(distribution: str) -> str:
    """Return what a distribution of an extra is imported as."""
    return {"warp-lang": "warp", "sbx-rl": "sbx"}.get(distribution, distribution.replace("-", "_"))


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module, None if there is none."""
    extras = {module_of(name): extra for extra, names in EXTRAS.items() for name in names}
    return {**extras, "mujoco": "dm-control"}.get(module.partition(".")[0])


def cpu_model() -> str:
    """Return the processor's name, or what the platform says."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_features() -> dict[str, bool]:
    """Return which instructions that matter to inference the processor has (Linux only)."""
    flags = _cpu_info("flags").split()
    return {name: flag in flags for name, flag in CPU_FEATURES.items()}


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Return each distribution's installed version, None where it is missing."""
    versions: dict[str, str | None] = dict.fromkeys(names)
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def git_commit(file: Path | None = None) -> str | None:
    """Return the commit this code is at (with ``-dirty`` for changes), None outside of git.

    Installed into an environment that lies in somebody's repository, the code has no commit.
    """
    here = Path(__file__).resolve() if file is None else file
    tracked = ["git", "ls-files", "--error-unmatch", here.name]
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    output = ""
    try:
        for command in (tracked, described):
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
    """Return this process's resident memory in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _cpu_info(key: str) -> str:
    """Return the first value of a key in ``/proc/cpuinfo``, empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
