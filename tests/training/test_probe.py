"""The linear probe reads what a linear map can read, and says so in millimetres."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import DatasetError
from vinoreward_training.encoder.probe import probe_places


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 40),
    scale=st.floats(1e-3, 1e3),
    offset=st.floats(-10, 10),
)
def test_errors_from_a_linear_map_are_millimetres(
    seed: int, size: int, scale: float, offset: float
) -> None:
    """Frames without the thing are left out."""
    random = np.random.default_rng(seed)
    latents = random.normal(size=(3 * size + 60, size)) * scale
    places = latents @ (random.normal(size=(size, 2)) / scale) + offset
    train, test = np.arange(len(latents) - 20), np.arange(len(latents) - 20, len(latents))
    places[::4] = np.nan
    places[test] += np.array([0.003, 0.004])
    found = probe_places(latents, {"object": places}, train, test)["object"]
    assert found.frames == np.isfinite(places[test, 0]).sum()
    assert (found.mean_mm, found.p95_mm) == pytest.approx((5.0, 5.0), abs=1e-2)
    assert found.r2 > 0.99 or np.nanvar(places[test]) < 1e-2


@pytest.mark.parametrize(("train", "test"), [(8, 8), (20, 0)])
def test_too_few_frames_are_refused(train: int, test: int) -> None:
    latents = np.random.default_rng(3).normal(size=(train + test, 8))
    with pytest.raises(DatasetError, match="capture more"):
        probe_places(
            latents, {"object": latents[:, :2]}, np.arange(train), np.arange(train, train + test)
        )
