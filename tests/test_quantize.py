"""INT8 is accepted for its decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_finetune import write_folder

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward_training import finetune, quantize
from vinoreward_training.finetune import FinetuneConfig
from vinoreward_training.quantize import (
    QuantizeConfig,
    boundary_rich,
    count_flips,
    gate,
    refit_threshold,
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


@given(
    st.lists(st.tuples(st.booleans(), st.floats(-5, 5)), min_size=2, max_size=30),
    st.floats(-2, 2),
)
@settings(deadline=None)
def test_no_threshold_flips_fewer_than_the_refitted_one(
    pairs: list[tuple[bool, float]], start: float
) -> None:
    decisions = np.array([decision for decision, _ in pairs])
    values = np.array([value for _, value in pairs])
    fitted = refit_threshold(decisions, values, start)
    flips = ((values >= fitted) != decisions).sum()
    middles = (np.sort(values)[1:] + np.sort(values)[:-1]) / 2
    for other in (start, *middles):
        assert flips <= ((values >= other) != decisions).sum()


def test_the_gate_lets_equal_decisions_pass() -> None:
    before = np.linspace(-3, 3, 1000)
    result = gate(before, {"a": before + 0.001}, 0.0, max_flips=0.005)
    assert result.threshold is None and result.flips.share <= 0.005


def test_the_gate_refits_a_shifted_network() -> None:
    before = np.random.default_rng(0).normal(size=2000)
    result = gate(before, {"a": before - 0.4, "b": before - 0.4}, 0.2, max_flips=0.005)
    assert result.threshold == pytest.approx(-0.2, abs=0.01)
    assert result.flips.frames == 1000  # measured on the half it was not fitted on


def test_the_gate_refuses_a_network_that_decides_otherwise() -> None:
    random = np.random.default_rng(0)
    before = random.normal(size=2000)
    noisy = before + random.normal(size=2000)
    with pytest.raises(QuantizationRefusedError, match=r"stays FP32.*--max-flips"):
        gate(before, {"good": before, "bad": noisy}, 0.0, max_flips=0.005)


def test_values_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_flips=2"):
        quantize.run(QuantizeConfig(max_flips=2))


@pytest.mark.slow
def test_a_bundle_gains_int8_or_stays_as_it_is(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 700)
    finetune.run(
        FinetuneConfig(
            data=data, out=tmp_path / "run", epochs=1, batch_size=16, target_fpr=0.2, threads=1
        )
    )
    path = tmp_path / "run" / "bundle"
    before = (path / "bundle.json").read_bytes()
    few = write_folder(tmp_path / "few", 60)
    with pytest.raises(DatasetError, match="at least 200"):
        quantize.run(QuantizeConfig(bundle=path, data=few))
    assert (path / "bundle.json").read_bytes() == before
    assert quantize.run(QuantizeConfig(bundle=path, data=data, max_flips=0.2)) == 0
    bundle = Bundle.load(path)
    assert bundle.spec.quantization is not None and bundle.spec.quantization.passed
    assert bundle.resolve_precision("openvino") == "int8"
    with bundle.backend("openvino", precision="int8") as backend:  # checks the golden frames
        assert backend.infer(bundle.golden.images).shape == bundle.golden.logits.shape
