"""Images of a failing camera: how they are drawn, and what the shipped classifier says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import write_views

from vinoreward.bundles.bundle import Bundle
from vinoreward.images import View
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier.camera_failure import (
    FAMILIES,
    PARTIAL,
    UNSEEN_FAMILIES,
    draw_frames,
    held_out,
    logits_by_family,
    step_frames,
)
from vinoreward_training.data.dataset import load_dataset

ALL = (*FAMILIES, *UNSEEN_FAMILIES)


def sources(height: int = 96, width: int = 128) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, height, width, 3), dtype=np.uint8)


@given(st.sampled_from(ALL), st.integers(16, 80), st.integers(16, 80), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_frame_depends_on_the_seed_and_leaves_its_source(
    family: str, height: int, width: int, seed: int
) -> None:
    images = sources(height, width)
    first, same = (
        draw_frames([family] * 2, images, np.arange(6), np.random.default_rng(seed)) for _ in "ab"
    )
    assert first.shape == (2, height, width, 3) and (first == same).all()
    assert (images == sources(height, width)).all()


def test_no_step_draws_a_held_out_frame() -> None:
    images, failures = sources(), np.array([1, 4])
    one = step_frames(7, 26, images, failures, seed=3)
    assert (one == step_frames(7, 26, images, failures, seed=3)).all()
    assert (one != step_frames(8, 26, images, failures, seed=3)).any()
    trained = {frame.tobytes() for frame in one if len(np.unique(frame)) > 1}
    for part in (1, 2):
        for _, frames in held_out(part, images, failures, seed=3, count=4):
            assert not trained & {frame.tobytes() for frame in frames}


def test_only_failures_are_damaged() -> None:
    images = sources()
    images[0] = 77  # the success
    for family in PARTIAL - {"exposure"}:
        frames = draw_frames([family] * 20, images, np.arange(1, 6), np.random.default_rng(0))
        assert not (frames == 77).all(axis=(2, 3)).any()


def changed(frames: np.ndarray, source: np.ndarray, views: list[View]) -> list[tuple[bool, ...]]:
    """Of each frame, from top to bottom, which views are not the source's."""
    edges = np.cumsum([view.height for view in views])[:-1]
    parts = np.split((frames != source).any(axis=(2, 3)), edges, axis=1)
    return list(zip(*(part.any(axis=1).tolist() for part in parts), strict=True))


@pytest.mark.parametrize("family", ALL)
def test_one_camera_fails_or_several(family: str) -> None:
    views = [View("front", 40), View("wrist", 24), View("side", 32)]
    images = sources(height=96, width=48)
    frames = draw_frames([family] * 60, images, np.array([2]), np.random.default_rng(1), views)
    some = [each for each in changed(frames, images[2], views) if not all(each)]
    if family in PARTIAL:
        assert len(some) < 10  # a few damaged rows may be as they were
    else:
        assert 15 < len(some) < 45
        assert {each.index(True) for each in some} == {0, 1, 2}
        assert {sum(each) for each in some} == {1, 2}


def test_a_camera_that_failed_stays_dead_in_later_images() -> None:
    views = [View(name, 32, age=age) for name in ("front", "wrist") for age in (2, 1, 0)]
    images = sources(height=192, width=32)
    random = np.random.default_rng(1)
    frames = draw_frames(["uniform noise"] * 200, images, np.array([0]), random, views)
    found = {(each[:3], each[3:]) for each in changed(frames, images[0], views)}
    alive, dead = (False, False, False), (True, True, True)
    since = {dead, (False, True, True), (False, False, True)}
    assert found == {(dead, dead)} | {(x, alive) for x in since} | {(alive, x) for x in since}


def test_a_dataset_of_two_cameras_is_scored_with_one_dead_camera(tmp_path: Path) -> None:
    dataset = load_dataset(write_views(tmp_path, 8))
    dead: list[tuple[bool, ...]] = []

    def score(images: np.ndarray) -> np.ndarray:
        dead.extend(changed(images, dataset.images[0], list(dataset.views)))
        return np.zeros((len(images), 2))

    logits_by_family(score, dataset, np.array([0, 1]), 1, seed=0)
    assert min(map(dead.count, [(True, True), (True, False), (False, True)])) > 60


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_shipped_classifier_claims_no_black_or_noisy_frame(precision: str) -> None:
    frames = dict(held_out(11, sources(), np.arange(6), seed=5, count=8, families=ALL))
    with Classifier(Bundle.load("panda-hover-classifier"), precision=precision) as classifier:
        claimed = {name: (classifier.compute_reward(one) > 0).sum() for name, one in frames.items()}
    assert sum(claimed.values()) <= 0.02 * 8 * len(ALL), claimed
    assert not any(claimed[family] for family in ("black", "grey", "Gaussian noise")), claimed
