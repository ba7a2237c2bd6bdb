"""INT8 decides where it is sure; the FP32 network looks again where it is not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_environments import (
    HEIGHT,
    WIDTH,
    Corridor,
    cell_log_odds,
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
        Classifier(without_band(bundle), backend=backend, precision="int8") as int8,
        Classifier(bundle, backend=backend, precision="int8") as both,
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


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({}, "int8"),
        ({"reward_mode": "log_odds"}, "fp32"),
        ({"reward_mode": "potential"}, "fp32"),
        ({"reward_mode": "log_odds", "precision": "int8"}, "int8"),
    ],
)
def test_numbers_that_are_paid_are_those_of_fp32_unless_int8_is_asked_for(
    bundle: Bundle, options: dict[str, Any], precision: str
) -> None:
    given = {"image_source": "obs", "success_threshold": THRESHOLD, **options}
    env = LearnedReward(Corridor("image", first_cells=(1,)), bundle, **given)
    env.reset(seed=0)
    info = env.step(1)[4]
    assert env.classifier.precision == precision
    # Cell 2 is far from the threshold.
    odds = cell_log_odds(2) + (SHIFT if precision == "int8" else 0)
    assert logit(info["reward_prob"]) == pytest.approx(odds, abs=1e-2)
    env.close()
