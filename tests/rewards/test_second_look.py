"""INT8 decides where it is sure; the FP32 network looks again where it is not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_environments import (
    HEIGHT,
    WIDTH,
    save_column_bundle,
    save_toy_bundle,
    with_int8,
)

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import ConfigError
from vinoreward.rewards.classifier import (
    Classifier,
    logit,
    translations,
)

THRESHOLD = 0.7
BAND = 1.5


# --- the classifier ----------------------------------------------------------------------------


SHIFT = 0.4
"""Error of the network that stands for INT8, in calibrated log-odds."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("toy")
    made = save_toy_bundle(folder / "toy", decision=Decision(threshold=THRESHOLD))
    return with_int8(made, SHIFT, BAND)


def without_band(bundle: Bundle) -> Bundle:
    decision = dataclasses.replace(bundle.spec.decision, int8_band=None)
    return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))


def images() -> np.ndarray:
    """Every shade of red: log-odds from far below the threshold to far above."""
    images = np.zeros((256, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.arange(256)[:, None, None]
    return images


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_fp32_answers_within_the_band_and_int8_beyond(bundle: Bundle, backend: str) -> None:
    with (
        Classifier(bundle, backend=backend, precision="fp32") as fp32,
        Classifier(without_band(bundle), backend=backend) as int8,
        Classifier(bundle, backend=backend) as both,
    ):
        exact, small = fp32.predict(images()).log_odds, int8.predict(images()).log_odds
        np.testing.assert_allclose(small - exact, SHIFT, atol=1e-3)
        again = np.abs(small - logit(THRESHOLD)) < BAND
        assert 0 < again.sum() < 256
        found = both.predict(images()).log_odds
        assert found.tolist() == np.where(again, exact, small).tolist()
        assert (both.scored, both.second_looks) == (256, again.sum())
        claims = both.compute_reward(images())
        assert np.array_equal(claims, fp32.compute_reward(images()))
        assert not np.array_equal(int8.compute_reward(images()), claims)
        assert (fp32.band, fp32.second_looks, int8.second_looks) == (None, 0, 0)
        assert len(fp32.backends) == len(int8.backends) == 1


def test_the_band_follows_the_users_threshold(bundle: Bundle) -> None:
    own = 0.05
    with Classifier(bundle, precision="fp32") as fp32, Classifier(bundle, threshold=own) as both:
        assert both.threshold == own
        exact = fp32.predict(images()).log_odds
        found = both.predict(images()).log_odds
        near = np.abs(exact - logit(own)) < BAND - SHIFT
        assert near.any() and np.array_equal(found[near], exact[near])
        decided = both.compute_reward(images()) > 0
        assert np.array_equal(decided, fp32.probability(images()) >= np.float32(own))
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ConfigError, match="0 to 1"):
            Classifier(bundle, threshold=wrong)


def test_fp32_decides_at_the_exit_threshold_too(bundle: Bundle) -> None:
    leave = 0.01
    with (
        Classifier(bundle, precision="fp32") as fp32,
        Classifier(bundle, exit_threshold=leave) as both,
    ):
        exact, found = fp32.predict(images()).log_odds, both.predict(images()).log_odds
        for limit in (logit(leave), logit(THRESHOLD)):
            near = np.abs(exact - limit) < BAND - SHIFT
            assert near.any() and np.array_equal(found[near], exact[near])
        assert both.second_looks < len(found)
    with pytest.raises(ConfigError, match=r"0\.8.*harder to keep"):
        Classifier(bundle, exit_threshold=0.8)


# --- translation average -------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 9))
def test_an_image_moves_by_a_pixel_and_repeats_its_side(
    count: int, height: int, width: int, seed: int
) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)
    same, left, right = translations(images)
    assert np.array_equal(same, images)
    for column in range(width):
        assert np.array_equal(left[:, :, column], images[:, :, min(column + 1, width - 1)])
        assert np.array_equal(right[:, :, column], images[:, :, max(column - 1, 0)])


SHIFT_BAND = 0.8


def with_shifts(bundle: Bundle, band: float | None = SHIFT_BAND) -> Bundle:
    decision = dataclasses.replace(bundle.spec.decision, translation_band=band)
    return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))


@pytest.fixture(scope="module")
def column(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A network that looks at one column alone; another bias stands for INT8."""
    folder = tmp_path_factory.mktemp("column")
    made = save_column_bundle(folder / "column", decision=Decision(threshold=THRESHOLD))
    return with_int8(made, SHIFT, BAND)


def edges() -> np.ndarray:
    """Images of every shade whose columns differ."""
    images = np.random.default_rng(2).integers(0, 60, (256, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] += np.arange(0, 256, dtype=np.uint8)[:, None, None] // 2 + 50
    return images


def means_of(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (0, 0)), mode="edge")
    places = range(3)
    moved = [np.ascontiguousarray(padded[:, :, at : at + images.shape[2]]) for at in places]
    return np.mean([classifier.predict(each).log_odds.astype(np.float64) for each in moved], axis=0)


@pytest.mark.parametrize(
    ("backend", "precision", "leave"),
    [("openvino", "fp32", None), ("openvino", "int8", 0.1), ("onnxruntime", "int8", None)],
)
def test_close_to_the_threshold_the_mean_of_fp32_counts(
    column: Bundle, backend: str, precision: str, leave: float | None
) -> None:
    with (
        Classifier(column, precision="fp32") as fp32,
        Classifier(column, backend=backend, precision=precision, exit_threshold=leave) as own,
        Classifier(
            with_shifts(column), backend=backend, precision=precision, exit_threshold=leave
        ) as averaged,
    ):
        before, mean = own.predict(edges()).log_odds, means_of(fp32, edges())
        limits = [logit(THRESHOLD)] + ([] if leave is None else [logit(leave)])
        near = np.any([np.abs(before - limit) < SHIFT_BAND for limit in limits], axis=0)
        found = averaged.predict(edges()).log_odds
        assert 0 < near.sum() < len(near)
        np.testing.assert_allclose(found, np.where(near, mean, before), atol=1e-4)
        decided = found >= logit(THRESHOLD)
        assert (decided != (before >= logit(THRESHOLD))).any(), "the means must matter here"
        assert np.array_equal(averaged.compute_reward(edges()) > 0, decided)
        single = [averaged.predict(image[None]).log_odds[0] for image in edges()]
        np.testing.assert_allclose(single, found, atol=1e-4)
        assert averaged.predict(edges()[:0]).log_odds.shape == (0,)


# --- where the number itself is paid -----------------------------------------------------------


class Golden(gym.Env[Any, Any]):
    """Shows the golden frames of a bundle, one after another."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images
        self.observation_space = gym.spaces.Box(0, 255, images.shape[1:], np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.now = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self.images[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return self.images[self.now], 0.0, False, self.now == len(self.images) - 1, {}


def rewards(images: np.ndarray, **options: Any) -> np.ndarray:
    """Return the rewards of one episode over the images."""
    env = LearnedReward(
        Golden(images),
        "panda-hover-classifier",
        image_source="obs",
        terminate_on_success=False,
        **options,
    )
    env.reset()
    found = np.array([float(env.step(0)[1]) for _ in images[1:]])
    env.close()
    return found


def test_numbers_that_are_paid_are_those_of_fp32_unless_int8_is_asked_for() -> None:
    images = Bundle.load("panda-hover-classifier").golden.images
    odds = {}
    for precision in ("int8", "fp32"):
        with Classifier("panda-hover-classifier", precision=precision) as classifier:
            odds[precision] = classifier.predict(images).log_odds
    assert np.abs(odds["int8"] - odds["fp32"]).max() > 1.0
    for precision, expected in (("auto", odds["fp32"]), ("int8", odds["int8"])):
        found = rewards(images, reward_mode="log_odds", precision=precision)
        np.testing.assert_allclose(found, expected[1:], atol=1e-4)


def test_a_sparse_reward_still_runs_in_int8() -> None:
    env = LearnedReward(
        Golden(np.zeros((2, 96, 128, 3), np.uint8)), "panda-hover-classifier", image_source="obs"
    )
    assert env.classifier.precision == "int8" and env.classifier.band is not None
    env.close()
