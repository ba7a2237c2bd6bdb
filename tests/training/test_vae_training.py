"""The training of an encoder: repeatable, resumable, and it finds small things."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vae_data import SIZE, frames_of

from vinoreward.errors import ConfigError, DatasetError, ModelCorruptError
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames, split_frames
from vinoreward_training.encoder.networks import build_vae
from vinoreward_training.encoder.probe import probe_places
from vinoreward_training.encoder.training import VaeFit, decode, encode, squared_error
from vinoreward_training.runs.fit import CHECKPOINT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads are in another order: not the very same weights in all processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit_of(
    folder: Path, frames: Frames | None = None, *, latent: int = 4, **changes: object
) -> VaeFit:
    folder.mkdir(exist_ok=True)
    frames = frames or frames_of(120)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae(*SIZE, latent, places=2 * len(frames.places))
    config = dataclasses.replace(TrainVaeConfig(steps=6), **changes)  # type: ignore[arg-type]
    return VaeFit(vae, frames, parts[0], parts[1], config, folder)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_error_of_places_is_in_square_millimetres(seed: int) -> None:
    random = np.random.default_rng(seed)
    places, read = random.normal(size=(2, 6, 4))
    places[random.random(6) < 0.4, 2:] = np.nan
    off = np.where(np.isfinite(places), 1000 * (read - places), 0.0)
    tensor = torch.from_numpy(read).float().requires_grad_()
    loss = squared_error(tensor, places)
    assert float(loss.detach()) == pytest.approx(np.mean([row @ row for row in off]), rel=1e-4)
    loss.backward()
    assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


def test_a_stopped_run_goes_on_to_the_very_same_weights(tmp_path: Path) -> None:
    whole = fit_of(tmp_path / "whole")
    whole.run("whole")
    stopped = fit_of(tmp_path / "stopped")
    stopped.run("stopped", until=4)
    assert stopped.step == 4
    resumed = fit_of(tmp_path / "stopped", resume=True)
    assert resumed.step == 4
    resumed.run("resumed")
    assert resumed.history == whole.history
    for name, value in whole.vae.state_dict().items():
        torch.testing.assert_close(value, resumed.vae.state_dict()[name], rtol=0, atol=0)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    fit_of(tmp_path).run("run", until=1)
    with pytest.raises(ConfigError, match="same images and settings"):
        fit_of(tmp_path, resume=True, beta=3.0)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelCorruptError):
        fit_of(tmp_path, resume=True)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 40),
    scale=st.floats(1e-3, 1e3),
    offset=st.floats(-10, 10),
)
def test_errors_of_the_probe_from_a_linear_map_are_millimetres(
    seed: int, size: int, scale: float, offset: float
) -> None:
    """Frames without the thing are left out; too few are refused."""
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
    with pytest.raises(DatasetError, match="capture more"):
        probe_places(latents, {"object": places}, train, test[:0])


@pytest.mark.slow
def test_a_small_thing_is_found_and_can_be_read_linearly(tmp_path: Path) -> None:
    """With its places and without; absent things neither count nor spoil the rest."""
    known = frames_of(300)
    known.places["object"][::7] = np.nan
    parts, found = split_frames(known, seed=0), {}
    for name, frames in {"known": known, "images": dataclasses.replace(known, places={})}.items():
        fit = fit_of(tmp_path / name, frames, latent=8, steps=60)
        fit.run(name)
        mean, _ = encode(fit.vae.encoder, frames.images)
        found[name] = probe_places(mean, known.places, parts[0], parts[2])["object"]
    # A hundredth of a metre is a pixel here, the table 0.35 m wide.
    assert min(error.r2 for error in found.values()) > 0.9
    decoded = decode(fit.vae.decoder, mean[:8])
    assert decoded.dtype == np.uint8 and decoded.shape == (8, *SIZE, 3)
