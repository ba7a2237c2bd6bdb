"""INT8 is accepted for its decisions."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
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
from vinoreward.errors import (
    ConfigError,
    DatasetError,
    ModelNotFoundError,
    QuantizationRefusedError,
)
from vinoreward.rewards.classifier import Classifier, threshold_distance
from vinoreward_training.configs import QuantizeConfig
from vinoreward_training.quantize import command as quantize
from vinoreward_training.quantize.gate import (
    GateResult,
    boundary_rich,
    choose_band,
    count_flips,
    gate,
    halves,
)


def test_half_of_the_frames_compared_are_the_ones_closest_to_the_threshold() -> None:
    log_odds = np.random.default_rng(0).normal(size=1000)
    chosen = boundary_rich(log_odds, 0.5, boundary=100, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == 200
    closest = np.argsort(np.abs(log_odds - 0.5))[:100]
    assert set(closest.tolist()) <= set(chosen.tolist())
    assert len(boundary_rich(log_odds, 0.5, boundary=5000, seed=0)) == 1000


def test_flips_are_counted_with_a_bound() -> None:
    flips = count_flips(np.zeros(100, bool), np.arange(100) < 2)
    assert (flips.count, flips.frames, flips.share) == (2, 100, 0.02)
    assert 0.02 < flips.high < 0.1


LIMITS = QuantizeConfig(boundary=500, max_flips=0.005, max_second_looks=0.25, seed=0)


def test_the_halves_share_no_episode() -> None:
    episodes = np.repeat(np.arange(101), 3)
    first = halves(episodes, seed=0)
    assert first.sum() == 150
    assert not set(episodes[first]) & set(episodes[~first])
    assert np.array_equal(first, halves(episodes, seed=0))


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


def test_errors_that_change_no_decision_do_not_widen_the_band() -> None:
    before = np.array([9.0, -9.0, 0.2, -8.0])
    after = np.array([4.0, -4.0, -0.1, -4.0])
    assert choose_band(before, {"a": after}, 0.0, boundary=1) == pytest.approx(1.25 * 0.3)


def noisy(scale: float, spread: float = 8.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return FP32 and INT8 log-odds and the first half."""
    random = np.random.default_rng(0)
    before = spread * random.normal(size=8000)
    return before, before + scale * random.normal(size=8000), np.arange(8000) % 2 == 0


def test_int8_decides_alone_where_it_surely_agrees() -> None:
    before, after, first = noisy(1e-4)
    found = gate(before, {"a": after}, first, 0.5, LIMITS)
    assert found.band is None and found.looks_all == 0
    assert found.flips == found.alone and found.flips.high <= 0.005


def test_a_second_look_takes_the_flips_away() -> None:
    before, after, first = noisy(0.6)
    found = gate(before, {"a": before, "b": after}, first, 0.5, LIMITS)
    assert found.alone.share > 0.005 >= found.flips.share
    assert found.band is not None and 1.2 < found.band < 2.4  # two to four times the noise
    assert found.flips == found.by_backend["b"]  # the worst backend's
    assert found.flips.frames == 1000 and found.by_backend["a"].count == 0
    assert 0 < found.looks_all < found.looks_boundary < 1


def test_flips_are_counted_from_what_fp32_decides_by_means_over_shifts() -> None:
    """Near the threshold these may be right where FP32's own log-odds are wrong."""
    before, after, first = noisy(0.6)
    decided = before >= 0.5
    near = np.abs(before - 0.5) < 0.3
    decided[near] = ~decided[near]
    found = gate(before, {"a": after}, first, 0.5, LIMITS, decided=decided)
    alone = gate(before, {"a": after}, first, 0.5, LIMITS)
    assert found.band == alone.band is not None
    rest = np.flatnonzero(~first)
    judged = rest[boundary_rich(before[rest], 0.5, boundary=500, seed=0)]
    again = threshold_distance(after, 0.5) < found.band
    claimed = np.where(again, decided, after >= 0.5)
    assert found.flips.count == (claimed != decided)[judged].sum()
    assert found.alone.count == ((after >= 0.5) != decided)[judged].sum()
    assert found.alone.count > alone.alone.count


def test_with_means_over_shifts_int8_never_decides_alone() -> None:
    """Not even where it and the means agree with FP32 everywhere."""
    before, after, first = noisy(1e-6)
    assert gate(before, {"a": after}, first, 0.5, LIMITS).band is None
    found = gate(before, {"a": after}, first, 0.5, LIMITS, translation_band=1.5)
    assert found.band == 1.5 and found.flips.count == 0 and found.looks_all > 0


@pytest.mark.parametrize("scale", [1e-4, 0.01, 0.05, 0.6])
def test_with_means_over_shifts_fp32_decides_at_least_within_their_band(scale: float) -> None:
    """However good INT8 is: the means are FP32's, and it has none of its own."""
    before, after, first = noisy(scale)
    near = np.abs(before - 0.5) < 1.5
    means = before + 0.3 * np.random.default_rng(1).normal(size=8000)
    decided = np.where(near, means, before) >= 0.5
    found = gate(before, {"a": after}, first, 0.5, LIMITS, decided=decided, translation_band=1.5)
    assert found.band is not None and found.band >= 1.5
    again = threshold_distance(after, 0.5) < found.band
    assert found.looks_all == again[~first].mean()
    # What is left are frames that INT8 moved out of the band.
    assert found.flips.count <= (near & ~again & ~first).sum()
    if scale == 1e-4:
        assert found.flips.count <= 1


def test_the_gate_refuses_where_fp32_would_have_to_look_too_often() -> None:
    before, after, first = noisy(0.6, spread=2.0)
    with pytest.raises(QuantizationRefusedError, match=r"unsure.*stays FP32.*--max-second-looks"):
        gate(before, {"a": after}, first, 0.5, LIMITS)
    wide = dataclasses.replace(LIMITS, max_second_looks=1.0)
    assert gate(before, {"a": after}, first, 0.5, wide).flips.share <= 0.005


def test_the_gate_refuses_what_the_other_half_did_not_show() -> None:
    before, after, first = noisy(0.01)
    random = np.random.default_rng(1)
    worse = np.where(first, after, before + 3 * random.normal(size=8000))
    with pytest.raises(QuantizationRefusedError, match=r"although FP32.*--max-flips"):
        gate(before, {"a": worse}, first, 0.5, LIMITS)


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

    def judge(weights: np.ndarray) -> GateResult:
        network = tiny.network(tmp_path / "int8.onnx", softmax=softmax, weights=weights)
        int8 = dataclasses.replace(bundle.network("fp32"), path=network, sha256=None)
        return quantize.compare(QuantizeConfig(), bundle, int8, images, np.arange(2000))

    with pytest.raises(QuantizationRefusedError, match=r"INT8 is unsure|INT8 flips"):
        judge(tiny.WEIGHTS[:, ::-1])
    good = judge(tiny.WEIGHTS * 1.01)
    assert good.flips.share <= 0.005 and good.flips.frames == 1000
    # The log-odds of the gate are those of the classifier that will decide.
    with Classifier(bundle, precision="fp32") as classifier:
        ours = quantize.log_odds_of(bundle.network("fp32"), "openvino", images[:50], bundle)
        np.testing.assert_allclose(
            ours, classifier.predict(images[:50]).log_odds, rtol=1e-4, atol=1e-4
        )


def test_frames_on_which_fp32_decides_all_alike_cannot_pass_a_network() -> None:
    before = np.full(2000, -3.0)
    before[:5] = 3.0
    never = np.full(2000, -3.0)  # claims nothing: 5 flips of 2,000 are below the limit
    first = np.arange(2000) % 2 == 0
    with pytest.raises(QuantizationRefusedError, match=r"claims success on \d of the 1000"):
        gate(before, {"a": never}, first, 0.0, LIMITS)


def test_values_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_flips=2"):
        quantize.run(QuantizeConfig(max_flips=2))
    with pytest.raises(ConfigError, match="max_second_looks=-1"):
        quantize.run(QuantizeConfig(max_second_looks=-1))


def test_an_installed_bundle_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = Path("panda-hover-classifier")
    with pytest.raises(ConfigError, match=r"installed bundle, which is only read.*cp -r"):
        quantize.run(QuantizeConfig(bundle=name))
    with pytest.raises(ModelNotFoundError, match="instead of a Path"):
        Bundle.load(name)


def test_a_bundle_gains_int8_or_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    data, few = write(tmp_path / "data", 800), write(tmp_path / "few", 60)
    before = (path / "bundle.json").read_bytes()
    audit = (
        rf"^next: vinoreward audit --bundle {re.escape(str(path))} --data {re.escape(str(data))}"
    )
    with pytest.raises(DatasetError, match=r"at least 200.*go on in FP32"):
        quantize.run(QuantizeConfig(bundle=path, data=few))
    assert (path / "bundle.json").read_bytes() == before
    said = capsys.readouterr().out
    assert "audit" not in said and f"Classifier({str(path)!r})" in said, "too few; no environment"
    # With that many flips allowed, no frames could show that INT8 decides as FP32 does.
    with pytest.raises(QuantizationRefusedError, match="stays FP32"):
        quantize.run(QuantizeConfig(bundle=path, data=data, max_flips=0.99, calibration=32))
    assert (path / "bundle.json").read_bytes() == before
    assert re.search(audit, capsys.readouterr().out, re.M)
    # So few frames never show surely that INT8 alone suffices: there is a band.
    config = QuantizeConfig(bundle=path, data=data, max_second_looks=1.0, calibration=32)
    assert quantize.run(config) == 0
    bundle = Bundle.load(path)
    found = bundle.spec.quantization
    assert found is not None and found.passed and bundle.spec.decision.int8_band is not None
    assert {"flips_without_second_look", "second_looks_held_out"} <= set(found.detail)
    with bundle.backend("openvino", precision="int8") as backend:  # checks the golden frames
        assert backend.infer(bundle.golden.images).shape == bundle.golden.logits.shape


@pytest.mark.slow
def test_a_machine_with_cudas_files_and_no_gpu_is_not_warned(tmp_path: Path) -> None:
    """Torch warns when its compiler of extensions is imported, which happens once a process."""
    pytest.importorskip("nncf")
    model = tiny.network(tmp_path / "model.onnx")
    code = (
        "import logging\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from vinoreward_training.quantize.network import quantize_onnx\n"
        f"frames = np.zeros((2, {tiny.HEIGHT}, {tiny.WIDTH}, 3), np.uint8)\n"
        f"model = Path({str(model)!r})\n"
        "quantize_onnx(model, model.with_name('int8.onnx'), frames)\n"
        "logging.getLogger('torch.utils.cpp_extension').warning('something else')\n"
    )
    environment = {**os.environ, "CUDA_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "something else" in done.stderr and "CUDA" not in done.stdout + done.stderr
