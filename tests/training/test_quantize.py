"""INT8 is accepted for its decisions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny_network as tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import softmax as softmax_of
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import QuantizationRefusedError
from vinoreward.rewards.classifier import Classifier, threshold_distance
from vinoreward_training.cli import main
from vinoreward_training.quantize import int8
from vinoreward_training.quantize.gate import (
    GateResult,
    boundary_rich,
    choose_band,
    gate,
)


def test_half_of_the_frames_compared_are_the_ones_closest_to_the_threshold() -> None:
    log_odds = np.random.default_rng(0).normal(size=1000)
    chosen = boundary_rich(log_odds, 0.5, boundary=100)
    assert len(chosen) == len(set(chosen.tolist())) == 200
    closest = np.argsort(np.abs(log_odds - 0.5))[:100]
    assert set(closest.tolist()) <= set(chosen.tolist())
    assert len(boundary_rich(log_odds, 0.5, boundary=5000)) == 1000


LIMITS = {"boundary": 500}


# In float32, so that 1.25 times a difference is never rounded down to the difference itself.
@given(
    st.lists(
        st.tuples(st.floats(-20, 20, width=32), st.floats(-9, 9, width=32)),
        min_size=1,
        max_size=50,
    ),
    st.floats(-2, 2, width=32),
)
@settings(deadline=None)
def test_no_flip_is_left_on_the_frames_on_which_the_band_was_chosen(
    frames: list[tuple[float, float]], threshold: float
) -> None:
    before = np.array([value for value, _ in frames])
    after = before + np.array([error for _, error in frames])
    band = choose_band(before, {"a": after, "exact": before}, threshold, boundary=20)
    combined = np.where(threshold_distance(after, threshold) < band, before, after)
    left = (combined >= threshold) != (before >= threshold)
    # INT8 exactly on the threshold has no distance from it that a band could be wider than.
    assert not left[after != threshold].any()


def noisy(scale: float, spread: float = 8.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return FP32 and INT8 log-odds and the first half."""
    random = np.random.default_rng(0)
    before = spread * random.normal(size=8000)
    return before, before + scale * random.normal(size=8000), np.arange(8000) % 2 == 0


def test_int8_decides_alone_where_it_surely_agrees() -> None:
    before, after, first = noisy(1e-4)
    found = gate(before, {"a": after}, first, 0.5, **LIMITS)
    assert found.band is None and found.looks_all == 0
    assert found.flips == found.alone and found.flips.high <= 0.005


def test_a_second_look_takes_the_flips_away() -> None:
    before, after, first = noisy(0.6)
    found = gate(before, {"a": before, "b": after}, first, 0.5, **LIMITS)
    assert found.alone.share > 0.005 >= found.flips.share
    assert found.band is not None and 1.2 < found.band < 2.4  # two to four times the noise
    assert found.flips == found.by_backend["b"]  # the worst backend's
    assert found.flips.frames == 1000 and found.by_backend["a"].count == 0
    assert 0 < found.looks_all < found.looks_boundary < 1


def test_the_gate_refuses_where_fp32_would_have_to_look_too_often() -> None:
    before, after, first = noisy(0.6, spread=2.0)
    with pytest.raises(QuantizationRefusedError, match=r"unsure.*stays FP32.*int8=on"):
        gate(before, {"a": after}, first, 0.5, **LIMITS)
    found = gate(before, {"a": after}, first, 0.5, **LIMITS, max_second_looks=1.0)
    assert found.flips.share <= 0.005


def test_the_gate_refuses_what_the_other_half_did_not_show() -> None:
    before, after, first = noisy(0.01)
    random = np.random.default_rng(1)
    worse = np.where(first, after, before + 3 * random.normal(size=8000))
    with pytest.raises(QuantizationRefusedError, match="although FP32"):
        gate(before, {"a": worse}, first, 0.5, **LIMITS)


@pytest.mark.parametrize("softmax", [False, True])
def test_the_gate_sees_an_inverted_network_whatever_the_graph_returns(
    tmp_path: Path, softmax: bool
) -> None:
    model = tiny.network(tmp_path / "model.onnx", softmax=softmax)
    golden = tiny.golden_images()
    spec = dataclasses.replace(tiny.SPEC, output="probabilities" if softmax else "logits")
    logits = tiny.expected_logits(golden)
    outputs = softmax_of(logits) if softmax else logits
    folder = save_bundle(tmp_path / "bundle", spec, {"model.onnx": model}, golden, outputs)
    bundle = Bundle.load(folder)
    images = tiny.golden_images(2000)

    def compared(weights: np.ndarray) -> GateResult:
        path = tiny.network(tmp_path / "int8.onnx", softmax=softmax, weights=weights)
        network = dataclasses.replace(bundle.network("fp32"), path=path, sha256=None)
        return int8.compare(bundle, network, images, np.arange(2000))

    with pytest.raises(QuantizationRefusedError, match=r"INT8 is unsure|INT8 flips"):
        compared(tiny.WEIGHTS[:, ::-1])
    good = compared(tiny.WEIGHTS * 1.01)
    assert good.flips.share <= 0.005 and good.flips.frames == 1000
    # The log-odds of the gate are those of the classifier that will decide.
    with Classifier(bundle, precision="fp32") as classifier:
        ours = int8.log_odds_of(bundle.network("fp32"), "openvino", images[:50], bundle)
        np.testing.assert_allclose(
            ours, classifier.predict(images[:50]).log_odds, rtol=1e-4, atol=1e-4
        )


def test_frames_on_which_fp32_decides_all_alike_cannot_pass_a_network() -> None:
    before = np.full(2000, -3.0)
    before[:5] = 3.0
    never = np.full(2000, -3.0)  # claims nothing: 5 flips of 2,000 are below the limit
    first = np.arange(2000) % 2 == 0
    with pytest.raises(QuantizationRefusedError, match=r"claims success on \d of the 1000"):
        gate(before, {"a": never}, first, 0.0, **LIMITS)


def test_calibrate_adds_int8_where_the_gate_allows_and_the_processor_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """See test_crop.py for the classifier of a training, with second looks."""

    def write(folder: Path, count: int) -> Path:
        odds = tiny.expected_logits(shown := tiny.golden_images(count))
        for index, (image, (failure, success)) in enumerate(zip(shown, odds, strict=True)):
            path = folder / ("success" if success > failure else "failure") / f"{index:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        return folder

    model, golden = tiny.network(tmp_path / "model.onnx"), tiny.golden_images()
    files, outputs = {"model.onnx": model}, tiny.expected_logits(golden)
    path = save_bundle(tmp_path / "bundle", tiny.SPEC, files, golden, outputs)
    data, few = write(tmp_path / "data", 800), write(tmp_path / "few", 300)

    def calibrated(folder: Path, *more: str) -> tuple[int, str, Bundle]:
        words = ["calibrate", "--bundle", str(path), "--data", str(folder), "--target-fpr", "0.3"]
        status = main([*words, *more])
        captured = capsys.readouterr()
        return status, captured.out + captured.err, Bundle.load(path)

    audit = f"next: vinoreward audit --bundle {path.parent} --data {data}"
    # A network of one layer gains nothing.
    status, said, bundle = calibrated(data)
    assert status == 0 and "Expected at least 1.1; the bundle stays FP32" in said and audit in said
    assert bundle.spec.quantization is None
    status, said, bundle = calibrated(few, "--int8", "on")
    assert status == 1 and "Expected at least 200" in said and bundle.spec.quantization is None
    # So few frames never show that INT8 alone suffices: there is a band.
    status, said, bundle = calibrated(data, "--int8", "on")
    found = bundle.spec.quantization
    assert status == 0 and found is not None and found.passed and audit in said
    assert bundle.spec.decision.int8_band is not None
    assert {"flips_without_second_look", "second_looks_held_out"} <= set(found.detail)
    with bundle.backend("openvino", precision="int8") as backend:  # checks the golden frames
        assert backend.infer(bundle.golden.images).shape == bundle.golden.logits.shape
    # Another calibration takes it away again.
    assert calibrated(data, "--int8", "off")[2].spec.quantization is None
    monkeypatch.chdir(tmp_path)
    path = Path("panda-hover-classifier")
    words = ["calibrate", "--bundle", str(path), "--data", str(data)]
    assert main(words) == 1
    assert "installed bundle, which is only read" in capsys.readouterr().err
