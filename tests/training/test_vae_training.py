"""The training of an encoder: repeatable, resumable."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vae_data import SIZE, frames_of

from vinoreward.errors import (
    DatasetError,
    ModelCorruptError,
)
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import split_frames
from vinoreward_training.encoder.networks import build_vae
from vinoreward_training.encoder.training import (
    PlaceReader,
    VaeFit,
    decode,
    encode,
)
from vinoreward_training.runs.fit import CHECKPOINT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads are in another order: not the very same weights in all processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit_of(folder: Path, *, steps: int = 12, resume: bool = False, **changes: object) -> VaeFit:
    folder.mkdir(exist_ok=True)
    frames = frames_of(120)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae(*SIZE, 4)
    config = TrainVaeConfig(steps=steps, batch_size=8, resume=resume)
    changed = dataclasses.replace(config, **changes)
    return VaeFit(vae, frames, parts[0], parts[1], changed, folder)


def test_places_that_are_asked_for_are_read_better(tmp_path: Path) -> None:
    from vinoreward_training.encoder.probe import probe_places

    frames = frames_of(300)
    frames.places["object"][::7] = np.nan  # absent things neither count nor spoil the rest
    parts = split_frames(frames, seed=0)
    found = {}
    for places in (0.0, 100.0):
        torch.manual_seed(0)
        vae = build_vae(*SIZE, 8)
        config = TrainVaeConfig(steps=60, batch_size=16, places=places)
        fit = VaeFit(vae, frames, *parts[:2], config, tmp_path / str(places))
        (tmp_path / str(places)).mkdir()
        fit.run()
        (error,) = probe_places(encode(vae.encoder, frames.images)[0], frames.places, *parts[::2])
        found[places] = error.mean_mm
    assert found[100.0] < 0.5 * found[0.0]


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_error_of_places_is_in_square_millimetres(seed: int) -> None:
    random = np.random.default_rng(seed)
    places = random.normal(size=(6, 4))
    places[random.random(6) < 0.4, 2:] = np.nan
    places[0] = 0.5
    reader = PlaceReader(3, places)
    mean = torch.from_numpy(random.normal(size=(6, 3))).float()
    read = reader.linear(mean).detach().numpy().astype(np.float64)
    off = np.where(np.isfinite(places), 1000 * (read - places), 0.0)
    naive = np.mean([row @ row for row in off])
    loss = reader.squared_error(mean, places)
    assert float(loss.detach()) == pytest.approx(naive, rel=1e-4)
    loss.backward()
    assert all(torch.isfinite(value.grad).all() for value in reader.parameters())


def weights_of(fit: VaeFit) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in fit.vae.state_dict().items()}


@pytest.mark.parametrize(("stop", "places"), [(1, 0.0), (7, 0.0), (7, 5.0)])
def test_ctrl_c_and_resume_lead_to_the_very_same_weights(
    tmp_path: Path, stop: int, places: float
) -> None:
    whole = fit_of(tmp_path / "whole", places=places)
    whole.run()

    def interrupt(step: int, _: dict[str, float]) -> None:
        if step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit_of(tmp_path / "stopped", places=places)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(interrupt)
    assert stopped.step == stop
    resumed = fit_of(tmp_path / "stopped", resume=True, places=places)
    assert resumed.step == stop
    resumed.run()
    assert resumed.history == whole.history
    for name, value in weights_of(whole).items():
        np.testing.assert_array_equal(value, weights_of(resumed)[name])


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=2)
    fit.run()
    with pytest.raises(ModelCorruptError, match="other settings"):
        fit_of(tmp_path / "run", steps=2, resume=True, beta=3.0)
    path = tmp_path / "run" / CHECKPOINT
    value = torch.load(path, weights_only=True)
    torch.save({**value, "frames": "1" * 64}, path)
    with pytest.raises(DatasetError, match="other frames"):
        fit_of(tmp_path / "run", steps=2, resume=True)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelCorruptError):
        fit_of(tmp_path / "run", steps=2, resume=True)


@pytest.mark.slow
def test_a_small_thing_is_found_and_can_be_read_linearly(tmp_path: Path) -> None:
    frames = frames_of(300)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae(*SIZE, 8)
    config = TrainVaeConfig(steps=150, batch_size=16)
    fit = VaeFit(vae, frames, *parts[:2], config, tmp_path)
    fit.run()
    from vinoreward_training.encoder.probe import probe_places

    mean, _ = encode(vae.encoder, frames.images)
    (found,) = probe_places(mean, frames.places, parts[0], parts[2])
    # A hundredth of a metre is a pixel here, the table 0.35 m wide.
    assert found.r2 > 0.9
    made = decode(vae.decoder, mean[:8])
    assert made.dtype == np.uint8 and made.shape == (8, *SIZE, 3)
