from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_children import kill, nothing_left, save_network, services

from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.serving.places import FOLDER

if sys.platform != "linux":
    collect_ignore_glob = ["test_*"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own; at the end nothing may be left of its services."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(FOLDER, str(folder))
    yield folder
    clean = nothing_left(folder, 30)
    left = [services(folder), [path.name for path in folder.iterdir()]]
    for pid in services(folder):
        kill(pid)
    assert clean, left


@pytest.fixture
def spec(tmp_path: Path) -> NetworkSpec:
    return save_network(tmp_path / "sums.onnx")
