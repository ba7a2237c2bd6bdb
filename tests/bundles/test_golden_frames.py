"""Golden frames show whether a network still does what it did when it was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_network import SPEC, forge, golden_images, network

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import BundleError, BundleParityError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_a_colour_swap_is_found_and_named(bundle: Bundle, tmp_path: Path, name: str) -> None:
    forge(bundle, "model.onnx", network(tmp_path / "swapped.onnx", swap=True).read_bytes())
    forged = Bundle.load(bundle.path)
    with pytest.raises(BundleParityError, match=r"golden frame \d.*Expected.*red and blue"):
        forged.backend(name)


def test_verification_can_be_left_out(bundle: Bundle, tmp_path: Path) -> None:
    forge(bundle, "model.onnx", network(tmp_path / "swapped.onnx", swap=True).read_bytes())
    with Bundle.load(bundle.path).backend("openvino", verify=False) as backend:
        assert backend.infer(golden_images()).shape == (4, 2)


@pytest.mark.parametrize(
    ("images", "logits"),
    [
        (np.zeros((2, 6, 9, 3), np.uint8), np.zeros((2, 2))),
        (np.zeros((2, 6, 8, 3), np.float32), np.zeros((2, 2))),
        (np.zeros((2, 6, 8, 3), np.uint8), np.zeros((3, 2))),
        (np.zeros((2, 6, 8, 3), np.uint8), np.full((2, 2), np.nan)),
    ],
)
def test_unfit_golden_frames_are_not_saved(
    tmp_path: Path, model: Path, images: np.ndarray, logits: np.ndarray
) -> None:
    with pytest.raises(BundleError, match="golden"):
        save_bundle(tmp_path / "b", SPEC, {"model.onnx": model}, images, logits)
    assert not (tmp_path / "b").exists()
