"""Scenes no capture has seen, and what a classifier makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.classifier.evaluation import Rates, per_category, rates
from vinoreward_training.data.capture_hover import HoverFrame, draw, take

if TYPE_CHECKING:
    from vinoreward.rewards.classifier import Classifier

FRESH = 0xF4E5
"""Mixed into the seed, so that no capture's frame is drawn again whatever its seed."""


def category_of(index: int) -> str:
    """Return the category of fresh scene ``index``: a quarter each of success, near miss, far,
    and object removed or moved away after the arm arrived.
    """
    if index % 4 < 3:
        return ("success", "near_miss", "far")[index % 4]
    return ("absent", "moved_after_arrival")[(index // 4) % 2]


def fresh_frames(count: int, seed: int, *, camera: CameraSpec | None = None) -> list[HoverFrame]:
    """Draw scenes for evaluation, with their places; the same as :func:`fresh_scenes`."""
    scene = HoverScene(camera=camera or CameraSpec())
    try:
        frames = []
        for index in range(count):
            category = category_of(index)
            random = np.random.default_rng([FRESH, seed, index])
            frames.append(take(scene, draw(category, random), category))
    finally:
        scene.close()
    return frames


def fresh_scenes(
    count: int = 2000, seed: int = 1, *, camera: CameraSpec | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """Draw scenes for evaluation.

    Successes are uniform in the success disc and near misses uniform in the ring around it.

    Args:
        count: how many.
        seed: decides them all.
        camera: what takes the pictures; the default camera if None.

    Returns:
        pictures (N, H, W, 3) uint8, labels (N,) int64 with 1 = success, categories (N,) strings.
    """
    frames = fresh_frames(count, seed, camera=camera)
    return (
        np.stack([frame.image for frame in frames]),
        np.array([frame.success for frame in frames], dtype=np.int64),
        np.array([frame.category for frame in frames]),
    )


@dataclass(frozen=True)
class FreshResult:
    """How a classifier did on fresh scenes.

    Attributes:
        rates: counts, recall with its interval, false-positive rate with its upper bound.
        categories: one row per category.
        decisions: (N,) bool, in the order of the scenes.
        probabilities: (N,) float32.
    """

    rates: Rates
    categories: list[dict[str, object]]
    decisions: npt.NDArray[np.bool_]
    probabilities: npt.NDArray[np.float32]


def evaluate_classifier(
    classifier: Classifier,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    categories: npt.NDArray[np.str_],
) -> FreshResult:
    """Let a classifier decide scenes as :func:`fresh_scenes` gives them.

    Args:
        classifier: on the backend and precision to be judged.
        images: (N, H, W, 3) uint8.
        labels: (N,) 1 = success.
        categories: (N,).
    """
    # One by one: the way an environment asks.
    probabilities = np.concatenate(
        [classifier.probability(images[index : index + 1]) for index in range(len(images))]
    )
    decisions = probabilities >= np.float32(classifier.threshold)
    return FreshResult(
        rates=rates(decisions, labels),
        categories=per_category(decisions, labels, categories.tolist()),
        decisions=decisions,
        probabilities=probabilities,
    )
