"""The tiny network, and the bundle of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_network import save_tiny

from vinoreward.bundles.bundle import Bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return save_tiny(tmp_path)


@pytest.fixture
def model(bundle: Bundle, tmp_path: Path) -> Path:
    return tmp_path / "source.onnx"
