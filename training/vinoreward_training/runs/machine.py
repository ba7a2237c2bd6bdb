"""What a training may use of the machine, and what a figure was measured on, as plain data."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vinoreward.machine import cores, usable_cores

PACKAGES = (
    "vinoreward", "gymnasium", "numpy", "openvino", "pillow", "warp-lang", "pybullet",
    "onnxruntime", "torch", "torchvision", "onnx", "nncf", "stable-baselines3",
)  # fmt: skip
"""Distributions whose versions bear on the figures."""

EXTRAS = {
    "panda": ("warp-lang", "pybullet", "pygame"),
    "onnxruntime": ("onnxruntime",),
    "train": (
        "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "nncf", "scipy",
        "safetensors", "stable-baselines3", "tensorboard", "matplotlib", "imageio",
        "imageio-ffmpeg",
    ),
    "dm-control": ("dm-control", "shimmy"),  # it needs MuJoCo itself
    "atari": ("ale-py", "opencv-python"),
    "ray": ("ray",),
    "lerobot": ("pyarrow", "av"),
    "timm": ("timm",),
    "hub": ("huggingface-hub",),
    "label": ("h11", "starlette", "uvicorn"),
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
    return {"warp-lang": "warp", "opencv-python": "cv2"}.get(
        distribution, distribution.replace("-", "_")
    )


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


def git_commit(file: Path = Path(__file__)) -> str | None:
    """Return the commit this code is at (with ``-dirty`` for changes), None outside of git.

    Installed into an environment that lies in somebody's repository, the code has no commit.
    """
    tracked = ["git", "ls-files", "--error-unmatch", file.name]
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = [
            subprocess.run(
                words, cwd=file.parent, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            for words in (tracked, described)
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return found[-1].strip() or None


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


def _cpu_info(key: str) -> str:
    """Return the first value of a key in ``/proc/cpuinfo``, empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def threads() -> int:
    """Return how many threads to compute on: ``OMP_NUM_THREADS``, or else one per usable core."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # "4,2" is for nested loops
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cores()


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
