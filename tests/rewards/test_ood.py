"""The guard: what it notices, how often it errs, and what a hostile file of it can do."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_network import forge
from toy_environments import save_toy_bundle

from vinoreward import Bundle, Classifier
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.errors import BundleError
from vinoreward.files import read_npz
from vinoreward.rewards.ood import (
    OodDetector,
    guard_of,
)
from vinoreward_training.classifier.fit_detector import FALSE_ALARMS, LEAST_EPISODES, fit_detector

HEIGHT, WIDTH = 40, 56


def scenes(count: int, seed: int) -> np.ndarray:
    """Return images (N, H, W, 3) of a noisy room in which a thing stands anywhere."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    room = np.stack([40 + 2 * rows, 90 + columns, 140 - rows], axis=-1).astype(np.float64)
    images = np.repeat(room[None], count, axis=0)
    for image in images:
        top, left = random.integers(0, HEIGHT - 8), random.integers(0, WIDTH - 8)
        image[top : top + 8, left : left + 8] = (230, 60, 30)
    images += random.normal(0, 3, images.shape)
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def guard() -> OodDetector:
    held_out = scenes(400, 1)
    return fit_detector(scenes(800, 0), held_out, np.arange(400))


def test_clean_images_are_not_ood(guard: OodDetector) -> None:
    """At most 1 % of fresh ones, surely: 0.2 % are asked for, and a margin is added."""
    assert (guard.ood_score(scenes(1000, 2)) > 1).sum() <= 4


CHANGES: dict[str, Any] = {
    "black": lambda x: np.zeros_like(x),
    "white": lambda x: np.full_like(x, 255),
    "noise": lambda x: np.random.default_rng(0).integers(0, 256, x.shape).astype(np.uint8),
    "half the light": lambda x: x // 2,
    "more light": lambda x: np.clip(x * 1.4, 0, 255).astype(np.uint8),
    "swapped colours": lambda x: np.ascontiguousarray(x[..., ::-1]),
    "upside down": lambda x: np.ascontiguousarray(x[:, ::-1]),
    "lower half lost": lambda x: np.concatenate([x[:, :20], 0 * x[:, 20:]], axis=1),
    "moved": lambda x: np.roll(x, 12, axis=2),
    "blurred": lambda x: (
        ((x[:, :, :-1].astype(int) + x[:, :, 1:]) // 2)
        .astype(np.uint8)
        .repeat(np.r_[np.ones(WIDTH - 2, int), 2], axis=2)
    ),
}


def test_changed_images_are_ood(guard: OodDetector) -> None:
    images = scenes(200, 3)
    for name, change in CHANGES.items():
        assert (guard.ood_score(change(images)) > 1).mean() >= 0.95, name


def test_a_little_more_or_less_light_is_not_ood() -> None:
    """In a room without noise too, whose colours lie anywhere between two levels."""
    room = np.arange(0, 256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3).repeat(60, 0)
    guard = fit_detector(room, room, np.arange(60))
    for off in (-6, 6):
        lit = np.clip(room[:1].astype(int) + off, 0, 255).astype(np.uint8)
        assert guard.ood_score(lit)[0] <= 1, off
    lit = np.clip(room[:1].astype(int) + 24, 0, 255).astype(np.uint8)
    assert guard.ood_score(lit)[0] > 1


def test_each_measure_counts_alone(guard: OodDetector) -> None:
    """Colours new to the image, colours new to one place, and roughness."""
    clean = scenes(1, 7)
    patch, noisy = clean.copy(), clean.copy()
    patch[:, 3:7, 3:7] = (20, 220, 220)
    noisy[..., 1] ^= 12
    shown = np.concatenate([clean, CHANGES["black"](clean), patch, noisy])
    found = []
    for which in range(3):
        scales = np.full(3, 1e6, np.float32)
        scales[which] = guard.scales[which]
        found.append((dataclasses.replace(guard, scales=scales).ood_score(shown) > 1).tolist())
    colours, places, rough = found
    assert colours[:2] == [False, True]
    assert places[:3] == [False, True, True]
    assert rough[0] is False and rough[3] is True


def test_the_episodes_that_choose_the_limit_do_not_choose_the_scales() -> None:
    """Every second one each, or the limit would promise too much."""
    held_out, of_frame = scenes(80, 8), np.arange(80)
    before = fit_detector(scenes(100, 9), held_out, of_frame)
    held_out[1::2] //= 2
    after = fit_detector(scenes(100, 9), held_out, of_frame)
    np.testing.assert_array_equal(after.scales, before.scales)
    assert after.limit[0] > 2 * before.limit[0]


def test_something_in_the_way_is_ood_wherever_it_is(guard: OodDetector) -> None:
    images = scenes(200, 4)
    for number, image in enumerate(images):
        top, left = number % (HEIGHT - 6), (7 * number) % (WIDTH - 6)
        image[top : top + 6, left : left + 6] = (20, 220, 220)
    assert (guard.ood_score(images) > 1).all()


@given(seed=st.integers(0, 1000), episodes=st.integers(LEAST_EPISODES, 60))
@settings(max_examples=10, deadline=None)
def test_the_limit_is_above_what_its_episodes_ask_for(seed: int, episodes: int) -> None:
    """Of n episodes none that chose it is out of distribution while n is below 1 / FALSE_ALARMS."""
    assert episodes < 1 / FALSE_ALARMS
    held_out = scenes(2 * episodes, seed)
    of_frame = np.arange(2 * episodes) // 2
    guard = fit_detector(scenes(100, seed + 1), held_out, of_frame)
    assert (guard.ood_score(held_out[of_frame % 2 == 1]) <= 1).all()
    larger = dataclasses.replace(guard, limit=guard.limit * 2)
    np.testing.assert_allclose(2 * larger.ood_score(held_out), guard.ood_score(held_out), rtol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 200), (97, 193)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 40, (60, *size, 3)).astype(np.uint8)
    guard = fit_detector(images, images[:30], np.arange(30))
    read = OodDetector.from_arrays(read_npz(guard.to_bytes(), 1 << 20), size)
    np.testing.assert_array_equal(read.ood_score(images), guard.ood_score(images))
    assert (guard.ood_score(np.full((1, *size, 3), 200, np.uint8)) > 1).all()


@given(
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    place=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    channel=st.integers(0, 2),
    level=st.sampled_from([16, 48, 80, 144, 176, 208, 240]),
)
@settings(max_examples=40, deadline=None)
def test_a_new_colour_counts_in_each_channel_of_each_pixel(
    height: int, width: int, place: tuple[float, float], channel: int, level: int
) -> None:
    """Images are uniform, so that one pixel is all that is strange; the last one too."""
    grey = np.full((60, height, width, 3), 112, np.uint8)
    guard = fit_detector(grey, grey, np.arange(60))
    pixel = round(place[0] * (height - 1)), round(place[1] * (width - 1))
    changed = grey[:1].copy()
    changed[0, pixel[0], pixel[1], channel] = level
    assert guard.ood_score(grey[:1])[0] == 0.0
    assert guard.ood_score(changed)[0] > 0.0


def test_a_file_that_cannot_be_right(guard: OodDetector) -> None:
    arrays = read_npz(guard.to_bytes(), 1 << 20)
    for name, value in (
        ("limit", np.array([0.0], np.float32)),
        ("limit", np.array([np.nan], np.float32)),
        ("scales", np.ones(4, np.float32)),
        ("seen", np.zeros(3, np.uint8)),
        ("rough_parts", np.zeros((10**5, 48), np.float32)),
        ("rough_mean", np.zeros(47, np.float32)),
        ("surprise", np.zeros(1)),
    ):
        with pytest.raises(BundleError, match=r"guard has .* cannot be right.*40 x 56.*calibrate"):
            OodDetector.from_arrays({**arrays, name: value}, (HEIGHT, WIDTH))


@pytest.mark.parametrize("content", [b"", None], ids=["empty", "pickle"])
def test_a_damaged_file_in_a_bundle(content: bytes | None, tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy", seen=range(8))
    if content is None:
        stream = io.BytesIO()
        np.savez(stream, size=np.array([{}], dtype=object))
        content = stream.getvalue()
    forge(bundle, GUARD_FILE, content)
    with pytest.raises(BundleError, match=r"guard.npz cannot be read.*vinoreward calibrate"):
        guard_of(Bundle.load(bundle.path))


def test_a_classifier_says_what_its_guard_says(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy", seen=(0, 1, 2, 3, 4, 6, 7))
    images = np.zeros((8, 6, 8, 3), np.uint8)
    images[..., 0] = np.round(255 * np.arange(8) / 7)[:, None, None]
    with Classifier(bundle) as classifier, Classifier(bundle, guarded=False) as alone:
        ood_score = classifier.predict(images).ood_score
        assert ood_score is not None and np.flatnonzero(ood_score > 1).tolist() == [5]
        assert alone.predict(images).ood_score is None
        assert np.flatnonzero(alone.compute_reward(images)).tolist() == [5, 6, 7]
        assert np.flatnonzero(classifier.compute_reward(images)).tolist() == [6, 7]
        assert classifier.predict(images[:0]).ood_score.shape == (0,)
    assert guard_of(save_toy_bundle(tmp_path / "without")) is None
