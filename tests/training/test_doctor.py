"""The doctor finds what is there, names what is missing, and its exit code is about the core."""

from __future__ import annotations

import importlib
import json
import platform
import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vinoreward.errors import install_command
from vinoreward.machine import cores, usable_cores
from vinoreward_training import doctor
from vinoreward_training.cli import main
from vinoreward_training.doctor import Finding
from vinoreward_training.runs.fit import prepare_torch
from vinoreward_training.runs.machine import (
    cpu_model,
    describe_machine,
    freed_memory_kept,
    package_versions,
    threads,
)


def test_every_extra_is_looked_for_in_full(project_root: Path) -> None:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    declared = {
        extra: {re.split(r"[<>=; ]", wanted)[0] for wanted in requirements} - {"mujoco"}
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in {"all", "dev", "docs"}  # those of developers
    }
    assert declared == {extra: set(names) for extra, names in doctor.EXTRAS.items()}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"dir_info": {"editable": True}}, "pip install -e '{path}[train]'"),
        ({"archive_info": {}, "url": "{path}/a.whl"}, "pip install '{path}/a.whl[train]'"),
        ({"dir_info": {}, "url": "{path}/gone"}, "pip install '.[train]' in a copy of"),
        (
            {"vcs_info": {"vcs": "git"}, "url": "https://a.b/c.git"},
            "pip install 'vinoreward[train] @ git+https://a.b/c.git'",
        ),
        (None, "pip install '{root}[train]'"),
    ],
)
def test_an_extra_comes_from_where_vinoreward_was_installed(
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: dict[str, Any] | None,
    expected: str,
) -> None:
    """It is on no index: its own name would find nothing, or somebody else's package."""
    path = tmp_path / "my copy"
    path.mkdir()
    (path / "pyproject.toml").touch()
    (path / "a.whl").touch()
    info = tmp_path / "vinoreward-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vinoreward\nVersion: 9\n")
    if record is not None:
        url = record.get("url", "{path}").format(path=path.as_uri())
        (info / "direct_url.json").write_text(json.dumps({**record, "url": url}))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("train").startswith(expected.format(path=path, root=project_root))


def test_a_missing_extra_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"some": ("numpy", "no-such-thing"), "core": ("numpy",)})
    missing, installed = doctor.extras()
    assert (missing.status, installed.status) == ("missing", "ok")
    assert missing.fix == install_command("some")


@pytest.mark.parametrize(
    ("gl", "library", "status", "told"),
    [
        ("osmesa", None, "missing", "apt-get install libosmesa6"),
        ("", "libOSMesa.so.8", "ok", "MUJOCO_GL=osmesa"),
    ],
)
def test_it_is_said_what_draws_mujoco_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gl: str, library: str | None, status: str, told: str
) -> None:
    pytest.importorskip("mujoco")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", gl)
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: library)
    (found,) = (one for one in doctor.surroundings() if one.topic == "MuJoCo's images")
    assert found.status == status and told in f"{found.text} {found.fix}"


@pytest.mark.slow
def test_the_doctor_runs_everything_that_is_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--bundle", "panda-hover-classifier"]) == 0
    printed = capsys.readouterr().out
    assert "The core works" in printed
    assert "golden frames give the recorded outputs" in printed
    assert not [line for line in printed.splitlines() if line.startswith("broken")]
    for line in (r"openvino devices +CPU", "backend openvino", "PandaHover-v0"):
        assert re.search(rf"^ok +{line}", printed, re.M)


def test_only_what_the_core_needs_decides_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle,) = doctor.golden_frames("nowhere")
    assert bundle.status == "broken" and "nowhere" in bundle.text
    devices = Finding("openvino devices", "ok", "", core=True)
    for broken, status in ((bundle, 0), (devices._replace(status="broken"), 1)):
        monkeypatch.setattr(doctor, "examine", lambda bundle, broken=broken: [devices, broken])
        assert main(["doctor"]) == status


def test_the_machine_is_described_as_plain_data() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert cpu_model()
    assert cores() >= 1
    assert package_versions(("numpy", "no-such-thing"))["no-such-thing"] is None


def page_faults(size: int, times: int) -> int:
    """Those of ``times`` arrays of ``size`` bytes, each freed before the next."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        np.empty(size, np.uint8)[:: resource.getpagesize()] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's")
def test_freed_memory_is_kept_only_where_asked() -> None:
    size = 50 * 2**20
    pages = size // resource.getpagesize()
    with freed_memory_kept():
        page_faults(size, 1)
        kept = page_faults(size, 10)
    after = page_faults(size, 10)
    assert kept < pages, "the kernel gave them once"
    assert after > 2 * kept, "each is given back to the kernel"


def test_threads_are_as_many_as_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads() == 3
    before = torch.get_num_threads()
    prepare_torch(0)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert threads() == usable_cores()
