"""``vinoreward doctor``: what is installed, what works, and the command that adds what does not."""

from __future__ import annotations

import os
import platform
import sys

from vinoreward.backends.base import available_backends
from vinoreward.backends.runtime import import_openvino, shared_core, telemetry_switches
from vinoreward.bundles.bundle import INT8_BACKENDS, Bundle
from vinoreward.bundles.locate import known_names
from vinoreward.errors import MissingExtraError, VinorewardError, install_command
from vinoreward.files import write_json
from vinoreward_training.configs.doctor import DoctorConfig
from vinoreward_training.doctor_extras import Finding, extras, ray_cluster, tasks
from vinoreward_training.runs.machine import (
    cores,
    cpu_features,
    cpu_model,
    git_commit,
    package_versions,
)


def devices() -> Finding:
    """Return which devices OpenVINO sees."""

    try:
        openvino = import_openvino()
        found = list(shared_core(openvino).available_devices)
    except (MissingExtraError, ImportError, RuntimeError) as error:
        return Finding(
            "openvino devices", "broken", str(error), "pip install --force-reinstall openvino", True
        )
    if "CPU" not in found:
        return Finding("openvino devices", "broken", f"no CPU among {found}", core=True)
    return Finding("openvino devices", "ok", ", ".join(found), core=True)


def backends() -> list[Finding]:
    """Return whether each registered backend's library is there."""

    findings = []
    for name, problem in available_backends().items():
        core = name == "openvino"
        if problem is None:
            findings.append(Finding(f"backend {name}", "ok", "its library is installed", core=core))
        else:
            status = "broken" if core else "missing"
            text, _, fix = problem.partition(" Install it with: ")
            findings.append(Finding(f"backend {name}", status, text, fix, core))
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
        findings.append(
            Finding(
                "INT8", "missing", "the processor has no VNNI: INT8 gains less", "precision='fp32'"
            )
        )
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if shown or sys.platform in {"darwin", "win32"}:
        findings.append(Finding("display", "ok", shown or sys.platform))
    else:
        findings.append(
            Finding("display", "missing", "none: render_mode='human' will not work", "set DISPLAY")
        )
    for library, left_on in telemetry_switches().items():
        text = "off" if left_on is None else f"on, as {left_on} asks"
        findings.append(Finding(f"telemetry of {library}", "ok", text))
    return findings


def environments() -> Finding:
    """Take one step of PandaHover-v0, so that camera, kinematics and network have all run."""
    import gymnasium

    import vinoreward  # noqa: F401  (registers the environments)

    try:
        env = gymnasium.make("PandaHover-v0")
        try:
            env.reset(seed=0)
            env.step(env.action_space.sample())
        finally:
            env.close()
    except MissingExtraError as error:
        return Finding("PandaHover-v0", "missing", str(error), install_command("panda"))
    except VinorewardError as error:
        return Finding("PandaHover-v0", "broken", str(error))
    return Finding("PandaHover-v0", "ok", "made, reset and stepped")


def examine(bundle: str | None = None) -> list[Finding]:
    """Look at everything; return the findings in the order they are shown."""

    commit = git_commit()
    where = f"Python {platform.python_version()} at {sys.executable}"
    about = Finding("python", "ok", where + (f", commit {commit}" if commit else ""), core=True)
    versions = ", ".join(f"{name} {found}" for name, found in package_versions().items() if found)
    findings = [about, Finding("versions", "ok", versions), *surroundings(), *extras()]
    findings += [devices(), *backends()]
    for name in known_names() if bundle is None else [bundle]:
        findings += golden_frames(name)
    findings.append(environments())
    return [*findings, *tasks(), *ray_cluster()]


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
    """Say whether nothing that the core needs is broken."""
    return not any(finding.core and finding.status != "ok" for finding in findings)
