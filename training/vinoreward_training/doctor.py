"""``vinoreward doctor``: what is installed, what works, and how to install or repair the rest."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import gymnasium as gym

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.backends.base import BACKENDS, missing_library
from vinoreward.backends.runtime import TELEMETRY_SWITCH, import_openvino, shared_core
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import known_names
from vinoreward.errors import ConfigError, MissingExtraError, VinorewardError, install_command
from vinoreward.machine import cores
from vinoreward_training.configs import DoctorConfig
from vinoreward_training.runs.machine import (
    EXTRAS,
    cpu_features,
    cpu_model,
    git_commit,
    module_of,
    package_versions,
)

NO_PYBULLET = (3, 12)
"""First Python version without a wheel of PyBullet."""
TELEMETRY: dict[str, tuple[str, Callable[[str], bool]]] = {
    "OpenVINO and NNCF": (TELEMETRY_SWITCH, lambda value: value == "1"),
    "Ray": ("RAY_USAGE_STATS_ENABLED", lambda value: value not in ("", "0")),
    "ONNX Runtime": ("ORT_DISABLE_TELEMETRY", lambda value: value not in ("1", "true", "yes")),
    "huggingface_hub": (
        "HF_HUB_DISABLE_TELEMETRY",
        lambda value: value not in ("1", "true", "yes", "on"),
    ),
}
"""Library to its environment variable, and whether it sends data with a value of it."""


class Finding(NamedTuple):
    """One line of the report."""

    topic: str
    status: str
    """``"ok"``, ``"missing"`` (can be installed), ``"absent"`` (optional) or ``"broken"``."""
    text: str
    fix: str = ""
    """Command or advice; empty if none is needed."""
    core: bool = False
    """Whether vinoreward does not work without it."""


def _failed(topic: str, status: str, error: object, core: bool = False) -> Finding:
    """Return a finding with an error's message; an install command at its end becomes the fix."""
    text, _, fix = str(error).partition(" Install it with: ")
    return Finding(topic, status, text, fix, core)


def missing_of(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(module_of(name)) is None]


def extras() -> Iterator[Finding]:
    """Yield a finding for each extra, and one for PyBullet where it has no wheel."""
    wheelless = sys.version_info[:2] >= NO_PYBULLET
    for extra in EXTRAS:
        topic, missing = f"extra [{extra}]", missing_of(extra)
        if "pybullet" in missing and wheelless:
            missing.remove("pybullet")
            yield Finding(
                "pybullet",
                "missing",
                f"there is no wheel for Python {platform.python_version()}; the default "
                'environments work, motion="dynamics", camera="tiny" and fidelity="article" do not',
                "use Python 3.10 or 3.11, or build it with a C++ compiler: pip install pybullet",
            )
        if missing:
            text = f"not installed: {', '.join(missing)}"
            yield Finding(topic, "missing", text, install_command(extra))
        else:
            yield Finding(topic, "ok", "installed")


def environment() -> Finding:
    """Return whether PandaHover-v0 (camera, kinematics, network) can be stepped."""
    topic = "PandaHover-v0"
    try:
        with contextlib.closing(gym.make(topic)) as env:
            env.reset(seed=0)
            env.step(env.action_space.sample())
    except VinorewardError as error:
        return _failed(
            topic, "missing" if isinstance(error, MissingExtraError) else "broken", error
        )
    return Finding(topic, "ok", "created, reset and stepped")


def devices() -> Finding:
    """Return the devices that OpenVINO finds."""
    topic, fix = "openvino devices", "pip install --force-reinstall openvino"
    try:
        names = list(shared_core(import_openvino()).available_devices)
    except (ImportError, RuntimeError) as error:
        return Finding(topic, "broken", str(error), fix, core=True)
    if "CPU" not in names:
        return Finding(topic, "broken", f"no CPU among {names}", core=True)
    return Finding(topic, "ok", ", ".join(names), core=True)


def available_backends() -> dict[str, str | None]:
    """Return each registered backend's name with ``None``, or the reason why it cannot be used."""
    backends: dict[str, str | None] = {}
    for name in BACKENDS.names():
        try:
            backends[name] = missing_library(BACKENDS.find(name))
        except (ImportError, ConfigError) as error:
            backends[name] = str(error)
    return backends


def backends() -> Iterator[Finding]:
    """Yield whether each registered backend's library is installed."""
    for name, problem in available_backends().items():
        core = name == "openvino"
        if problem is None:
            yield Finding(f"backend {name}", "ok", "its library is installed", core=core)
        else:
            yield _failed(f"backend {name}", "broken" if core else "missing", problem, core)


def golden_frames(name: str) -> Iterator[Finding]:
    """Run a bundle's golden frames on every usable backend and precision."""
    try:
        bundle = Bundle.load(name)
        count = len(bundle.golden.images)
    except VinorewardError as error:
        yield Finding(f"bundle {name}", "broken", str(error), "reinstall its package")
        return
    yield Finding(f"bundle {name}", "ok", f"{bundle.spec.kind}, {bundle.path}")
    quantized = bundle.spec.quantization is not None and bundle.spec.quantization.passed
    for backend, problem in available_backends().items():
        for precision in ("fp32", "int8"):
            known = quantized and precision in BACKENDS.find(backend).precisions
            if problem or (precision == "int8" and not known):
                continue
            topic = f"  on {backend} {precision}"
            core = (backend, precision) == ("openvino", "fp32")
            try:
                bundle.backend(backend, precision=precision).close()
            except VinorewardError as error:
                yield Finding(topic, "broken", str(error), core=core)
            else:
                text = f"{count} golden frames give the recorded outputs"
                yield Finding(topic, "ok", text, core=core)


def surroundings() -> Iterator[Finding]:
    """Yield processor, display and telemetry."""
    features = [name for name, present in cpu_features().items() if present]
    yield Finding("processor", "ok", f"{cpu_model()}, {cores()} cores, {', '.join(features)}")
    if not {"vnni", "avx-vnni"} & {*features} and platform.machine() in {"x86_64", "AMD64"}:
        text = "no VNNI: INT8 works, about 1.6 times as fast as FP32 instead of 2.2 times"
        yield Finding("INT8", "absent", text)
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if display or sys.platform in {"darwin", "win32"}:
        yield Finding("display", "ok", display or sys.platform)
    else:
        text = "none: only render_mode='human' needs one, other images do not"
        yield Finding("display", "absent", text)
    if sys.platform == "linux" and importlib.util.find_spec("mujoco") is not None:
        yield _mujoco(os.environ.get("MUJOCO_GL", "").lower(), display)
    for library, (variable, sends) in TELEMETRY.items():
        value = os.environ.get(variable, "")
        text = f"on, as set by {variable}={value}" if sends(value.lower()) else "off"
        yield Finding(f"telemetry of {library}", "ok", text)


def _mujoco(chosen: str, display: str | None) -> Finding:
    """Return how MuJoCo renders images; ``chosen`` is the value of MUJOCO_GL."""
    topic = "MuJoCo's images"
    if chosen != "osmesa" and (chosen or display):
        return Finding(topic, "ok", f"rendered by {chosen or 'the display'}")
    if ctypes.util.find_library("OSMesa") is not None:
        return Finding(topic, "ok", "OSMesa draws them with MUJOCO_GL=osmesa, without a GPU")
    text = "no display and no OSMesa: they need a GPU and MUJOCO_GL=egl"
    fix = "without a GPU: apt-get install libosmesa6, then export MUJOCO_GL=osmesa"
    return Finding(topic, "missing" if chosen else "absent", text, fix)


def examine(bundle: str | None = None) -> Iterator[Finding]:
    """Check everything; yield the findings in the order in which they are printed."""
    commit = git_commit()
    where = f"Python {platform.python_version()} at {sys.executable}"
    yield Finding("python", "ok", where + (f", commit {commit}" if commit else ""), core=True)
    versions = ", ".join(f"{name} {found}" for name, found in package_versions().items() if found)
    yield Finding("versions", "ok", versions)
    yield from surroundings()
    yield from extras()
    yield devices()
    yield from backends()
    for name in known_names() if bundle is None else [bundle]:
        yield from golden_frames(name)
    yield environment()


def run(config: DoctorConfig) -> int:
    """Print the findings; return 0 if everything that the core needs works, else 1."""
    findings = list(examine(config.bundle))
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        print(f"{finding.status:<8} {finding.topic:<{width}}  {finding.text}")
        if finding.fix:
            print(f"{'':<8} {'':<{width}}  -> {finding.fix}")
    works = all(finding.status == "ok" for finding in findings if finding.core)
    print(f"\nThe core {'works' if works else 'does not work: see the lines marked broken'}.")
    return 0 if works else 1
