"""``vinoreward doctor``: what is installed, what works, and how to add what does not."""

from __future__ import annotations

import contextlib
import ctypes.util
import functools
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.backends.base import BACKENDS, missing_library
from vinoreward.backends.runtime import TELEMETRY_SWITCH, import_openvino, shared_core
from vinoreward.bundles.bundle import INT8_BACKENDS, Bundle
from vinoreward.bundles.locate import known_names
from vinoreward.errors import ConfigError, MissingExtraError, VinorewardError, install_command
from vinoreward.files import write_json
from vinoreward.machine import cores
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.engines.ray.cluster import found_address, import_ray
from vinoreward_actors.tasks.lookup import make_task
from vinoreward_training.configs import DoctorConfig
from vinoreward_training.runs.machine import (
    EXTRAS,
    cpu_features,
    cpu_model,
    git_commit,
    module_of,
    package_versions,
)

TRIED = {"dm-control": "cheetah-run", "atari": "pong"}
"""Extra to a task of ``vinoreward actors`` that tests it."""
WHEELLESS = {
    "pybullet": (
        (3, 12),
        '; the default environments work, motion="dynamics", camera="tiny" and fidelity="article" '
        "do not",
        "use Python 3.10 or 3.11 for these, or build it with a C++ compiler: pip install pybullet",
    ),
    "dm-control": (
        (3, 13),
        " of labmaze, which it needs; its tasks do not work, all others do",
        "use Python 3.10 to 3.12 for these",
    ),
}
"""Distribution to the first Python without a wheel of it, what does not work there, what to do."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    status: str
    """``"ok"``, ``"missing"`` (can be added), ``"absent"`` (need not be there) or ``"broken"``."""
    text: str
    fix: str = ""
    """What to do; empty if nothing."""
    core: bool = False
    """Whether the core needs it."""


def _split(topic: str, status: str, message: object, core: bool = False) -> Finding:
    """Return a finding from an error's message; a command at its end is the fix."""
    text, _, fix = str(message).partition(" Install it with: ")
    return Finding(topic, status, text, fix, core)


def missing_of(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(module_of(name)) is None]


def extras() -> list[Finding]:
    """Return a finding for each extra, and one for each distribution without a wheel here."""
    findings = []
    for extra, parts in EXTRAS.items():
        topic, missing = f"extra [{extra}]", missing_of(extra)
        wheelless = [
            name
            for name in missing
            if name in WHEELLESS and sys.version_info[:2] >= WHEELLESS[name][0]
        ]
        missing = [name for name in missing if name not in wheelless]
        if missing:
            text = f"not installed: {', '.join(missing)}"
            findings.append(Finding(topic, "missing", text, install_command(extra)))
        elif len(wheelless) < len(parts):
            findings.append(Finding(topic, "ok", "installed"))
        for name in wheelless:
            _, without, fix = WHEELLESS[name]
            text = f"there is no wheel for Python {platform.python_version()}{without}"
            findings.append(Finding(name, "missing", text, fix))
    return findings


def _stepped(topic: str, make: Callable[[], gym.Env[Any, Any]], missing: str) -> Finding:
    """Make, reset and step an environment; the status without its library is ``missing``."""
    try:
        with contextlib.closing(make()) as env:
            env.reset(seed=0)
            env.step(env.action_space.sample())
    except VinorewardError as error:
        return _split(topic, missing if isinstance(error, MissingExtraError) else "broken", error)
    return Finding(topic, "ok", "made, reset and stepped")


def hover() -> Finding:
    """Take one step of PandaHover-v0, so that camera, kinematics and network have all run."""
    return _stepped("PandaHover-v0", lambda: gym.make("PandaHover-v0"), "missing")


def tasks() -> list[Finding]:
    """Make, reset and step one task of each suite that is installed."""
    # Installed, but does not load: broken.
    return [
        _stepped(f"task {task}", functools.partial(make_task, task, seed=0), "broken")
        for extra, task in TRIED.items()
        if not missing_of(extra)
    ]


def ray_cluster() -> list[Finding]:
    """Return where the engine ``ray`` would run its actors; nothing without Ray."""
    if missing_of("ray"):
        return []
    try:
        version = import_ray().__version__
        address = found_address()
    except (MissingExtraError, EngineError) as error:
        return [Finding("engine ray", "broken", str(error))]
    where = "a cluster of its own on this machine" if address is None else f"the one at {address}"
    return [Finding("engine ray", "ok", f"Ray {version}, would use {where}")]


def devices() -> Finding:
    """Return which devices OpenVINO sees."""
    try:
        openvino = import_openvino()
        names = list(shared_core(openvino).available_devices)
    except (ImportError, RuntimeError) as error:
        return Finding(
            "openvino devices", "broken", str(error), "pip install --force-reinstall openvino", True
        )
    if "CPU" not in names:
        return Finding("openvino devices", "broken", f"no CPU among {names}", core=True)
    return Finding("openvino devices", "ok", ", ".join(names), core=True)


def available_backends() -> dict[str, str | None]:
    """Return each registered backend's name with ``None``, or the reason why it cannot be used."""
    backends: dict[str, str | None] = {}
    for name in BACKENDS.names():
        try:
            backends[name] = missing_library(BACKENDS.find(name))
        except (ImportError, ConfigError) as error:
            backends[name] = str(error)
    return backends


def backends() -> list[Finding]:
    """Return whether each registered backend's library is there."""
    findings = []
    for name, problem in available_backends().items():
        core = name == "openvino"
        if problem is None:
            findings.append(Finding(f"backend {name}", "ok", "its library is installed", core=core))
        else:
            status = "broken" if core else "missing"
            findings.append(_split(f"backend {name}", status, problem, core))
    return findings


def golden_frames(name: str) -> list[Finding]:
    """Run a bundle's golden frames on every usable backend and precision."""
    try:
        bundle = Bundle.load(name)
        golden = bundle.golden
    except VinorewardError as error:
        return [Finding(f"bundle {name}", "broken", str(error), "reinstall the package it is from")]
    text = f"{bundle.spec.kind}, {bundle.path}"
    findings = [Finding(f"bundle {name}", "ok", text)]
    for backend, problem in available_backends().items():
        if problem is not None:
            continue
        precisions = ["fp32"]
        quantized = bundle.spec.quantization
        if quantized is not None and quantized.passed and backend in INT8_BACKENDS:
            precisions.append("int8")
        for precision in precisions:
            topic = f"  on {backend} {precision}"
            core = backend == "openvino" and precision == "fp32"
            try:
                bundle.backend(backend, precision=precision).close()
            except VinorewardError as error:
                findings.append(Finding(topic, "broken", str(error), core=core))
            else:
                text = f"{len(golden.images)} golden frames give the recorded outputs"
                findings.append(Finding(topic, "ok", text, core=core))
    return findings


def surroundings() -> list[Finding]:
    """Return processor, display and telemetry."""
    features = [name for name, there in cpu_features().items() if there]
    findings = [
        Finding("processor", "ok", f"{cpu_model()}, {cores()} cores, {', '.join(features)}")
    ]
    slow = "vnni" not in features and "avx-vnni" not in features
    if slow and platform.machine() in {"x86_64", "AMD64"}:
        text = "no VNNI: INT8 works, about 1.6 times as fast as FP32 in place of 2.2 times"
        findings.append(Finding("INT8", "absent", text))
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if shown or sys.platform in {"darwin", "win32"}:
        findings.append(Finding("display", "ok", shown or sys.platform))
    else:
        text = "none: only render_mode='human' needs one, all other images are drawn without"
        findings.append(Finding("display", "absent", text))
    if sys.platform == "linux" and importlib.util.find_spec("mujoco") is not None:
        findings.append(_mujoco(os.environ.get("MUJOCO_GL", "").lower(), shown))
    for library, left_on in _telemetry().items():
        text = "off" if left_on is None else f"on, as {left_on} asks"
        findings.append(Finding(f"telemetry of {library}", "ok", text))
    return findings


def _telemetry() -> dict[str, str | None]:
    """Return each library with telemetry and the setting that keeps it on, None if it is off."""
    intel = f"{TELEMETRY_SWITCH}=1" if os.environ.get(TELEMETRY_SWITCH) == "1" else None
    ray = os.environ.get("RAY_USAGE_STATS_ENABLED", "0")
    switches = {
        "ONNX Runtime": "ORT_DISABLE_TELEMETRY",
        "huggingface_hub": "HF_HUB_DISABLE_TELEMETRY",
    }
    return {
        "OpenVINO": intel,
        "NNCF": intel,
        "Ray": None if ray == "0" else f"RAY_USAGE_STATS_ENABLED={ray}",
        **{library: _left_on(name) for library, name in switches.items()},
    }


def _left_on(switch: str) -> str | None:
    value = os.environ.get(switch, "").lower()
    off = ("1", "true", "yes", *(["on"] if switch.startswith("HF") else []))
    return None if value in off else f"{switch}={value}"


def _mujoco(chosen: str, shown: str | None) -> Finding:
    """Return what draws MuJoCo's images; ``chosen`` is MUJOCO_GL, ``shown`` a display."""
    topic, there = "MuJoCo's images", ctypes.util.find_library("OSMesa") is not None
    if chosen != "osmesa" and (chosen or shown):
        return Finding(topic, "ok", f"drawn by {chosen or 'the display'}")
    if there:
        return Finding(topic, "ok", "OSMesa draws them with MUJOCO_GL=osmesa, without a GPU")
    text = "no display and no OSMesa: they need a GPU and MUJOCO_GL=egl"
    fix = "without a GPU: apt-get install libosmesa6, then export MUJOCO_GL=osmesa"
    return Finding(topic, "missing" if chosen else "absent", text, fix)


def examine(bundle: str | None = None) -> list[Finding]:
    """Check everything; return the findings in the order they are shown."""
    commit = git_commit()
    where = f"Python {platform.python_version()} at {sys.executable}"
    about = Finding("python", "ok", where + (f", commit {commit}" if commit else ""), core=True)
    versions = ", ".join(f"{name} {found}" for name, found in package_versions().items() if found)
    findings = [about, Finding("versions", "ok", versions), *surroundings(), *extras()]
    findings += [devices(), *backends()]
    for name in known_names() if bundle is None else [bundle]:
        findings += golden_frames(name)
    return [*findings, hover(), *tasks(), *ray_cluster()]


def run(config: DoctorConfig) -> int:
    """Print the findings; return 0 if the core works, else 1."""
    findings = examine(config.bundle)
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        print(f"{finding.status:<8} {finding.topic:<{width}}  {finding.text}")
        if finding.fix:
            print(f"{'':<8} {'':<{width}}  -> {finding.fix}")
    if config.json is not None:
        write_json(config.json, {"findings": [vars(finding) for finding in findings]})
    works = core_works(findings)
    print(f"\nThe core {'works' if works else 'does not work: see the lines marked broken'}.")
    return 0 if works else 1


def core_works(findings: list[Finding]) -> bool:
    """Return whether nothing that the core needs is broken."""
    return not any(finding.core and finding.status != "ok" for finding in findings)
