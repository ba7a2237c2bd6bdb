"""The doctor finds what is there, names what is missing, and its exit code is about the core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vinoreward_training import doctor
from vinoreward_training.doctor import DoctorConfig, Finding, core_works
from vinoreward_training.machine import (
    cores,
    cpu_model,
    describe_machine,
    git_commit,
    package_versions,
    resident_bytes,
)


def test_only_the_core_decides() -> None:
    optional = Finding("extra [panda]", "missing", "not installed")
    broken = Finding("bundle x", "broken", "edited")
    assert core_works([Finding("openvino", "ok", "", core=True), optional, broken])
    assert not core_works([Finding("openvino", "broken", "", core=True), optional])


def test_a_missing_extra_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {"train": (("no-such-thing", "no_such_module"),)}
    monkeypatch.setattr(doctor, "EXTRAS", extras)
    (found,) = doctor.missing_extras()
    assert found.status == "missing"
    assert "no-such-thing" in found.text
    assert found.fix == "pip install 'vinoreward[train]'"


def test_pybullet_without_a_wheel_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"panda": (("pybullet", "no_such_module"),)})
    monkeypatch.setattr(doctor, "PYBULLET_BEFORE", (3, 0))
    extra, pybullet = doctor.missing_extras()
    assert extra.status == "ok"
    assert "no wheel" in pybullet.text
    assert "3.10 or 3.11" in pybullet.fix


def test_openvino_has_a_cpu_and_is_a_backend() -> None:
    assert doctor.devices().status == "ok"
    assert "CPU" in doctor.devices().text
    found = {finding.topic: finding for finding in doctor.backends()}
    assert found["backend openvino"].status == "ok"
    assert found["backend openvino"].core


def test_a_broken_bundle_is_a_finding_not_a_crash(tmp_path: Path) -> None:
    (found,) = doctor.golden_frames(str(tmp_path / "nowhere"))
    assert found.status == "broken"
    assert "nowhere" in found.text


@pytest.mark.slow
def test_the_doctor_runs_everything_that_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.run(DoctorConfig(json=tmp_path / "doctor.json")) == 0
    printed = capsys.readouterr().out
    assert "The core works" in printed
    assert "golden frames give the recorded outputs" in printed
    findings = json.loads((tmp_path / "doctor.json").read_text(encoding="utf-8"))["findings"]
    assert not [finding for finding in findings if finding["status"] == "broken"]


def test_the_machine_is_described_as_plain_data() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert cpu_model()
    assert cores() >= 1
    assert package_versions(("numpy", "no-such-thing"))["no-such-thing"] is None
    assert resident_bytes() > 1_000_000


def test_outside_of_git_there_is_no_commit(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("", encoding="utf-8")
    assert git_commit(file) is None
