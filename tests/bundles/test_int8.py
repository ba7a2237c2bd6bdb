"""INT8 is used where its gate passed, and adding it changes nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tiny_network import (
    COARSE,
    PASSED,
    WEIGHTS,
    expected_logits,
    forge,
    golden_images,
    network,
    snapshot,
)

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import BundleError, BundleParityError, ConfigError
from vinoreward_training.runs.bundles import add_int8

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def with_int8(bundle: Bundle, tmp_path: Path, quantization: Quantization = PASSED) -> Bundle:
    coarse = network(tmp_path / "coarse.onnx", weights=COARSE)
    logits = expected_logits(golden_images(), COARSE)
    return Bundle.load(add_int8(bundle, coarse, quantization, logits, int8_band=0.75))


def test_auto_takes_int8_where_the_gate_passed(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.resolve_precision("openvino") == "fp32"
    quantized = with_int8(bundle, tmp_path)
    assert quantized.resolve_precision("openvino", "auto") == "int8"
    assert quantized.resolve_precision("onnxruntime", "auto") == "fp32"
    assert quantized.resolve_precision("torch", "auto") == "fp32"
    assert quantized.resolve_precision("somebody-elses", "auto") == "fp32"
    assert quantized.resolve_precision("openvino", "fp32") == "fp32"
    assert quantized.network().path.name == "model.int8.onnx"
    assert quantized.network("fp32").path.name == "model.onnx"
    assert quantized.spec.decision.int8_band == quantized.second_look_band("int8") == 0.75
    assert quantized.second_look_band("fp32") is bundle.second_look_band("int8") is None
    for name in ("openvino", "onnxruntime"):
        with quantized.backend(name, precision="int8") as backend:
            assert backend.precision == "int8"
            found = backend.infer(golden_images())
            assert np.allclose(found, expected_logits(golden_images(), COARSE), atol=1e-3)


def test_int8_that_is_not_there_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no INT8 network.*vinoreward calibrate"):
        bundle.network("int8")
    with pytest.raises(ConfigError, match="torch"):
        with_int8(bundle, tmp_path).resolve_precision("torch", "int8")
    with pytest.raises(ConfigError, match="Expected auto or one of fp32, bf16, int8"):
        bundle.resolve_precision("openvino", "fp8")
    failed = Quantization(passed=False, flips=9, frames=400, method="nncf-ptq")
    quantized = with_int8(Bundle.load(bundle.path), tmp_path, failed)
    assert quantized.resolve_precision("openvino", "auto") == "fp32"
    with pytest.raises(ConfigError, match=r"9 of 400.*vinoreward calibrate"):
        quantized.backend("openvino", precision="int8")


def test_a_broken_quantization_is_found(bundle: Bundle, tmp_path: Path) -> None:
    quantized = with_int8(bundle, tmp_path)
    broken = network(tmp_path / "broken.onnx", weights=np.zeros_like(WEIGHTS))
    forge(quantized, "model.int8.onnx", broken.read_bytes())
    forged = Bundle.load(bundle.path)
    with pytest.raises(BundleParityError, match=r"in probability.*broken quantization"):
        forged.backend("openvino")
    forged.backend("openvino", precision="fp32").close()


@pytest.mark.parametrize(("band", "passes"), [(4 * 3.0, False), (4 * 5.0, True)])
def test_int8_may_differ_by_a_quarter_of_the_band_in_which_fp32_decides(
    bundle: Bundle, tmp_path: Path, band: float | None, passes: bool
) -> None:
    """A frame's log-odds are 5.8 and not 1.8, as recorded: its probability differs by 0.13."""
    images = golden_images()
    moved = expected_logits(images, COARSE)
    moved[3, bundle.spec.success_index] -= 4.0 * bundle.spec.decision.temperature
    coarse = network(tmp_path / "coarse.onnx", weights=COARSE)
    added = add_int8(bundle, coarse, PASSED, moved, int8_band=band)
    if passes:
        Bundle.load(added).backend("onnxruntime", precision="int8").close()
    else:
        with pytest.raises(BundleParityError, match=r"1 of \d+ frames differ"):
            Bundle.load(added).backend("onnxruntime", precision="int8")


def test_adding_int8_keeps_everything_else(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.path / "README.md").write_text("# mine")
    before, logits = snapshot(bundle.path), bundle.golden.logits
    quantized = with_int8(bundle, tmp_path)
    after = snapshot(quantized.path)
    for name in ("model.onnx", "README.md"):
        assert after[name] == before[name]
    assert np.array_equal(quantized.golden.logits, logits)
    assert sorted(os.listdir(tmp_path)) == ["coarse.onnx", "source.onnx", "tiny"]
    again = with_int8(quantized, tmp_path)
    assert again == quantized


@pytest.mark.parametrize("name", ["README.md", "images"])
def test_what_a_link_points_to_never_becomes_part_of_the_bundle(
    bundle: Bundle, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"private")
    (bundle.path / "images").mkdir()
    if name == "images":
        (bundle.path / name).rename(tmp_path / "album")
        secret.rename(tmp_path / "album" / "secret.png")
        (bundle.path / name).symlink_to(tmp_path / "album")
    else:
        (bundle.path / name).unlink(missing_ok=True)
        (bundle.path / name).symlink_to(secret)
    with pytest.raises(BundleError, match=rf"{name} is a link to .*Expected files of the bundle"):
        with_int8(Bundle.load(bundle.path), tmp_path)
    copied = [path for path in bundle.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert all(path.read_bytes() != b"private" for path in copied)
    assert Bundle.load(bundle.path) == bundle
