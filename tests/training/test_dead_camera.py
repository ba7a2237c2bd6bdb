"""Pictures of a failing camera: how they are drawn, and what the shipped classifier says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier.dead_camera import (
    FAMILIES,
    UNSEEN_FAMILIES,
    dead_frames,
    held_out,
    of_step,
)


def sources(height: int = 96, width: int = 128) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, height, width, 3), dtype=np.uint8)


@given(
    st.sampled_from([*FAMILIES, *UNSEEN_FAMILIES]),
    st.integers(16, 80),
    st.integers(16, 80),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_every_family_draws_a_picture_of_the_given_size(
    family: str, height: int, width: int, seed: int
) -> None:
    images = sources(height, width)
    before = images.copy()
    frames = dead_frames([family] * 2, images, np.arange(6), np.random.default_rng(seed))
    assert frames.shape == (2, height, width, 3) and frames.dtype == np.uint8
    assert (images == before).all()


def test_a_step_is_shown_the_same_frames_again_and_no_held_out_one() -> None:
    images, failures = sources(), np.array([1, 4])
    one = of_step(7, 26, images, failures, seed=3)
    assert (one == of_step(7, 26, images, failures, seed=3)).all()
    assert (one != of_step(8, 26, images, failures, seed=3)).any()
    shown = {frame.tobytes() for frame in one if len(np.unique(frame)) > 1}
    for part in (1, 2):
        for _, frames in held_out(part, images, failures, seed=3, count=4):
            assert not shown & {frame.tobytes() for frame in frames}


def test_only_failures_are_damaged() -> None:
    images = sources()
    images[0] = 77  # the success
    for family in ("lost rows", "dead channel", "rolled"):
        frames = dead_frames([family] * 20, images, np.arange(1, 6), np.random.default_rng(0))
        assert not (frames == 77).all(axis=(2, 3)).any()


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_shipped_classifier_claims_no_black_or_noisy_frame(precision: str) -> None:
    images = sources()
    names = [*FAMILIES, *UNSEEN_FAMILIES]
    with Classifier(Bundle.load("panda-hover-classifier"), precision=precision) as classifier:
        claimed = {
            family: int((classifier.compute_reward(frames) > 0).sum())
            for family, frames in held_out(
                11, images, np.arange(6), seed=5, count=8, families=names
            )
        }
    assert sum(claimed.values()) <= 0.02 * 8 * len(names), claimed
    assert not any(claimed[family] for family in ("black", "grey", "Gaussian noise")), claimed
