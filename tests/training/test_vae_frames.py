"""Frames to train an encoder on; its networks and its loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vae_data import BLUE, SIZE, frames_of, make_images, write_capture, write_folder

from vinoreward.errors import (
    DatasetError,
)
from vinoreward_training.data.dataset import load_frames, split_frames
from vinoreward_training.encoder.networks import build_vae
from vinoreward_training.encoder.training import FOREGROUND, PixelWeights, divergence

# Frames


def test_a_capture_gives_places_and_episodes(tmp_path: Path) -> None:
    frames = load_frames(write_capture(tmp_path / "capture"))
    expected = make_images(160)[1].astype(np.float64)
    expected[9::10] = np.nan
    np.testing.assert_allclose(frames.places["object"], expected)
    assert len(np.unique(frames.episodes)) == 80
    assert not frames.resized


def test_frames_are_resized_as_the_run_time_does(tmp_path: Path) -> None:
    from vinoreward.images import ImageSpec, prepare

    folder = write_folder(tmp_path / "any")
    frames = load_frames(folder, size=(64, 48))
    wanted = prepare(make_images(80)[0], ImageSpec(height=64, width=48, resize="pil_bilinear"))
    np.testing.assert_array_equal(frames.images, wanted)
    assert frames.resized


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="Expected at least 64"):
        load_frames(write_folder(tmp_path / "few", 20))
    mixed = write_folder(tmp_path / "mixed")
    Image.new("RGB", (50, 50)).save(mixed / "zz.png")
    with pytest.raises(DatasetError, match="50x50"):
        load_frames(mixed)
    lost = write_capture(tmp_path / "lost")
    (lost / "frames" / "0003.png").unlink()
    with pytest.raises(DatasetError, match="lists 1 images that are not there"):
        load_frames(lost)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(6, 200))
def test_no_episode_is_in_two_parts(seed: int, count: int) -> None:
    frames = frames_of(count)
    parts = split_frames(frames, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert all(len(part) for part in parts)
    episodes = [set(frames.episodes[part]) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[1] & episodes[2]
    assert not episodes[0] & episodes[2]


# Networks and loss


@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(32, 70),
    width=st.integers(32, 70),
    latent=st.integers(1, 10).map(lambda half: 2 * half),
)
def test_every_size_goes_in_and_comes_out(height: int, width: int, latent: int) -> None:
    vae = build_vae(height, width, latent)
    made, mean, log_variance = vae(torch.zeros(2, 3, height, width), torch.zeros(2, latent))
    assert made.shape == (2, 3, height, width)
    assert mean.shape == log_variance.shape == (2, latent)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0.1, 3))
def test_the_divergence_is_that_of_the_normal_distributions(seed: int, spread: float) -> None:
    random = torch.Generator().manual_seed(seed)
    mean = spread * torch.randn((6, 4), generator=random, dtype=torch.float64)
    log_variance = torch.randn((6, 4), generator=random, dtype=torch.float64)
    found = divergence(mean, log_variance)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (0.5 * log_variance).exp()),
        torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean)),
    ).mean(0)
    torch.testing.assert_close(found, expected)
    assert (found >= 0).all()


def test_a_rare_colour_and_what_moves_count_more() -> None:
    def weights_of(images: np.ndarray) -> np.ndarray:
        targets = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
        return PixelWeights.measure(images).of(images[:1], targets)[0, 0].numpy()

    images, _ = make_images(200)
    found = weights_of(images)
    blue = (images[0] == BLUE).all(-1)
    assert np.unique(found[~blue]) == pytest.approx([1.0])
    # 16 of 1280 pixels are blue, more than a hundredth: moving, but of no rare colour.
    assert np.unique(found[blue]) == pytest.approx([1.0 + FOREGROUND])
    # Of a single pixel among 25600 the colour is rarer than a hundredth, by a factor of 256.
    images = np.zeros((20, *SIZE, 3), dtype=np.uint8)
    images[0, 3, 5] = BLUE
    found = weights_of(images)
    assert found[3, 5] == pytest.approx(256 * (1.0 + FOREGROUND))
    assert np.unique(np.delete(found, 3 * SIZE[1] + 5)) == pytest.approx([1.0])
