"""Images of a failing camera: how they are drawn, and what the shipped classifier says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import write_views

from vinoreward.bundles.bundle import Bundle
from vinoreward.images import View
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier.dead_camera import (
    FAMILIES,
    PARTIAL,
    UNSEEN_FAMILIES,
    dead_frames,
    held_out,
    judged,
    of_step,
)
from vinoreward_training.data.dataset import load_dataset


def sources(height: int = 96, width: int = 128) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, height, width, 3), dtype=np.uint8)


@given(
    st.sampled_from([*FAMILIES, *UNSEEN_FAMILIES]),
    st.integers(16, 80),
    st.integers(16, 80),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_every_family_draws_an_image_of_the_given_size(
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


def changed(frames: np.ndarray, source: np.ndarray, views: list[View]) -> list[tuple[bool, ...]]:
    """Of each frame, from top to bottom, which views are not the source's."""
    edges = np.cumsum([view.height for view in views])[:-1]
    parts = np.split((frames != source).any(axis=(2, 3)), edges, axis=1)
    return list(zip(*(part.any(axis=1).tolist() for part in parts), strict=True))


@pytest.mark.parametrize("family", [*FAMILIES, *UNSEEN_FAMILIES])
def test_of_two_cameras_one_dies_or_both(family: str) -> None:
    views = [View("front", 40), View("wrist", 24), View("side", 32)]
    images = sources(height=96, width=48)
    frames = dead_frames([family] * 60, images, np.array([2]), np.random.default_rng(1), views)
    dead = changed(frames, images[2], views)
    some = [each for each in dead if not all(each)]
    if family in PARTIAL:  # half an image is as one that something hides
        assert len(some) < 10  # a few damaged rows may be as they were
    else:
        assert 15 < len(some) < 45
        assert {each.index(True) for each in some} == {0, 1, 2}
        assert {sum(each) for each in some} == {1, 2}


def test_a_dataset_of_two_cameras_is_judged_on_one_dead_camera(tmp_path: Path) -> None:
    dataset = load_dataset(write_views(tmp_path, 8))
    seen: list[np.ndarray] = []

    def score(images: np.ndarray) -> np.ndarray:
        seen.append(images)
        return np.zeros((len(images), 2))

    judged(score, dataset, np.array([0, 1]), 1, seed=0)
    views = list(dataset.views)
    dead = Counter(one for each in seen for one in changed(each, dataset.images[0], views))
    assert min(dead[(True, True)], dead[(True, False)], dead[(False, True)]) > 60


def test_a_camera_that_died_is_dead_in_its_last_images() -> None:
    views = [View(name, 32, age=age) for name in ("front", "wrist") for age in (2, 1, 0)]
    images = sources(height=192, width=32)
    random = np.random.default_rng(1)
    frames = dead_frames(["uniform noise"] * 200, images, np.array([0]), random, views)
    dead = {(each[:3], each[3:]) for each in changed(frames, images[0], views)}
    alive = (False, False, False)
    since = [(True, True, True), (False, True, True), (False, False, True)]
    assert dead == {(since[0], since[0])} | {(x, alive) for x in since} | {
        (alive, x) for x in since
    }


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
