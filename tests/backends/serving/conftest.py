from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_children import own_folder, save_network

from vinoreward.backends.network import NetworkSpec

if sys.platform != "linux":
    collect_ignore_glob = ["test_*"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folder(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def spec(tmp_path: Path) -> NetworkSpec:
    return save_network(tmp_path / "sums.onnx")
