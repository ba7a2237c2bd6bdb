"""What the doctor finds of the extras: which are installed, and whether they work when tried."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass

from vinoreward.actor_learner.engines.base import EngineError
from vinoreward.actor_learner.engines.ray.cluster import found_address, import_ray
from vinoreward.errors import MissingExtraError, VinorewardError, install_command
from vinoreward_training.tasks.lookup import make_task

EXTRAS: dict[str, tuple[tuple[str, str], ...]] = {
    "panda": (("warp-lang", "warp"), ("pybullet", "pybullet")),
    "onnxruntime": (("onnxruntime", "onnxruntime"),),
    "train": (
        ("torch", "torch"),
        ("torchvision", "torchvision"),
        ("onnx", "onnx"),
        ("onnxscript", "onnxscript"),
        ("onnxruntime", "onnxruntime"),
        ("nncf", "nncf"),
        ("scipy", "scipy"),
        ("safetensors", "safetensors"),
        ("stable-baselines3", "stable_baselines3"),
        ("tensorboard", "tensorboard"),
        ("matplotlib", "matplotlib"),
        ("imageio", "imageio"),
        ("imageio-ffmpeg", "imageio_ffmpeg"),
        ("psutil", "psutil"),
    ),
    "dm-control": (("dm-control", "dm_control"),),  # it needs MuJoCo itself
    "atari": (("ale-py", "ale_py"),),
    "ray": (("ray", "ray"),),
}
"""Extra to its (distribution, module) pairs."""

TRIED = {"dm-control": "cheetah-run", "atari": "pong"}
"""Extra to the task of ``vinoreward actors`` that shows whether it works."""


@dataclass(frozen=True)
class Wheelless:
    """A distribution that has no wheel from some Python on.

    Attributes:
        since: the first Python without one.
        text: what does not work there.
        fix: what to do.
    """

    since: tuple[int, int]
    text: str
    fix: str


WHEELLESS = {
    "pybullet": Wheelless(
        (3, 12),
        '; the default environments work, motion="dynamics", camera="tiny" and fidelity="article" '
        "do not",
        "use Python 3.10 or 3.11 for these, or build it with a C++ compiler: pip install pybullet",
    ),
    "dm-control": Wheelless(
        (3, 13),
        " of labmaze, which it needs; its tasks do not work, all others do",
        "use Python 3.10 to 3.12 for these",
    ),
}
"""Distributions that an extra leaves out on some Pythons."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what was looked at.
        status: ``"ok"``, ``"missing"`` (optional, can be added) or ``"broken"``.
        text: what was found.
        fix: what to do, empty where nothing is to be done.
        core: whether the core needs it.
    """

    topic: str
    status: str
    text: str
    fix: str = ""
    core: bool = False


def missing_of(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name, module in EXTRAS[extra] if importlib.util.find_spec(module) is None]


def extras() -> list[Finding]:
    """Return a finding for each extra, and one for each distribution without a wheel here."""
    findings = []
    for extra, parts in EXTRAS.items():
        missing = missing_of(extra)
        wheelless = [
            name
            for name in missing
            if name in WHEELLESS and sys.version_info[:2] >= WHEELLESS[name].since
        ]
        missing = [name for name in missing if name not in wheelless]
        if missing:
            command = install_command(extra)
            text = f"not installed: {', '.join(missing)}"
            findings.append(Finding(f"extra [{extra}]", "missing", text, command))
        elif len(wheelless) < len(parts):
            findings.append(Finding(f"extra [{extra}]", "ok", "installed"))
        for name in wheelless:
            text = f"there is no wheel for Python {platform.python_version()}"
            without = WHEELLESS[name]
            findings.append(Finding(name, "missing", f"{text}{without.text}", without.fix))
    return findings


def tasks() -> list[Finding]:
    """Make, reset and step one task of each suite that is installed."""
    return [_tried(task) for extra, task in TRIED.items() if not missing_of(extra)]


def _tried(task: str) -> Finding:

    topic = f"task {task}"
    try:
        env = make_task(task, seed=0)
        try:
            env.reset()
            env.step(env.action_space.sample())
        finally:
            env.close()
    except VinorewardError as error:  # A MissingExtraError too: what is installed does not load.
        text, _, fix = str(error).partition(" Install it with: ")
        return Finding(topic, "broken", text, fix)
    return Finding(topic, "ok", "made, reset and stepped")


def ray_cluster() -> list[Finding]:
    """Say where the engine ``ray`` would run its actors; nothing where Ray is not installed."""
    if missing_of("ray"):
        return []

    try:
        version = import_ray().__version__
        address = found_address()
    except (MissingExtraError, EngineError) as error:
        return [Finding("engine ray", "broken", str(error))]
    where = "a cluster of its own on this machine" if address is None else f"the one at {address}"
    return [Finding("engine ray", "ok", f"Ray {version}, would use {where}")]
