"""The linear probe reads what a linear map can read, and says so in millimetres."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import DatasetError
from vinoreward_training.encoder.probe import fit_probe, probe_error, probe_places


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 40),
    scale=st.floats(1e-3, 1e3),
    offset=st.floats(-10, 10),
)
def test_it_recovers_a_known_linear_map(seed: int, size: int, scale: float, offset: float) -> None:
    random = np.random.default_rng(seed)
    latents = random.normal(size=(size + 50, size)) * scale
    weights = random.normal(size=(size, 2)) / scale
    places = latents @ weights + offset
    probe = fit_probe(latents, places)
    np.testing.assert_allclose(probe.weights, weights, rtol=1e-5, atol=1e-7 / scale)
    np.testing.assert_allclose(probe.offset, offset, atol=1e-6)
    fresh = random.normal(size=(20, size)) * scale
    np.testing.assert_allclose(probe.predict(fresh), fresh @ weights + offset, atol=1e-6)


def test_errors_are_millimetres_of_metres() -> None:
    latents = np.eye(4, dtype=np.float32).repeat(10, axis=0)
    places = latents[:, :2].astype(np.float64)
    probe = fit_probe(latents, places)
    found = probe_error(probe, "object", latents, places + np.array([0.003, 0.004]))
    assert found.mean_mm == pytest.approx(5.0, abs=1e-3)
    assert found.p95_mm == pytest.approx(5.0, abs=1e-3)


def test_frames_without_the_thing_are_left_out() -> None:
    random = np.random.default_rng(2)
    latents = random.normal(size=(400, 5))
    places = latents[:, :2] * 0.1
    places[::4] = np.nan
    train, held = np.arange(300), np.arange(300, 400)
    (found,) = probe_places(latents, {"object": places}, train, held)
    assert (found.frames, found.fitted_on) == (75, 225)
    assert found.mean_mm < 1e-6


def test_too_few_frames_are_refused() -> None:
    with pytest.raises(DatasetError, match="Expected more than 8"):
        fit_probe(np.zeros((8, 8)), np.zeros((8, 2)))


def test_no_held_out_frame_is_an_error() -> None:
    latents = np.random.default_rng(3).normal(size=(20, 2))
    probe = fit_probe(latents, latents)
    with pytest.raises(DatasetError, match="no held-out frame shows the object"):
        probe_error(probe, "object", latents[:0], latents[:0])
