"""The tiny network, and the bundle of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_network import SPEC, expected_logits, golden_images, network

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return network(tmp_path / "source.onnx")


@pytest.fixture
def bundle(tmp_path: Path, model: Path) -> Bundle:
    images = golden_images()
    return Bundle.load(
        save_bundle(tmp_path / "tiny", SPEC, {"model.onnx": model}, images, expected_logits(images))
    )
