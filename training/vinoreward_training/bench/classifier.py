"""Bench row about trust: the classifier on fresh scenes, traps included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.bench.network import scene_camera
from vinoreward_training.bench.statistics import Row
from vinoreward_training.classifier.dead_camera import FAMILIES, UNSEEN_FAMILIES, held_out
from vinoreward_training.classifier.fresh_scenes import evaluate_classifier, fresh_scenes
from vinoreward_training.configs.bench import BenchConfig

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

DEAD_PART = 3
"""Dead-camera frames of the bench: neither validation's (1) nor test's (2)."""


def classifier_rows(config: BenchConfig) -> list[Row]:
    """Judge scenes no capture has seen: false positives with their upper bound, and recall.

    And pictures of a failing camera, of families that training shows and of others.
    """

    bundle = Bundle.load(config.bundle)
    images, labels, categories = fresh_scenes(
        config.scenes, config.seed, camera=scene_camera(bundle)
    )
    with Classifier(bundle) as classifier:
        found = evaluate_classifier(classifier, images, labels, categories)
        precision = classifier.precision
    success = labels == 1
    negatives, positives = int((~success).sum()), int(success.sum())
    false = int((found.decisions & ~success).sum())
    hits = int((found.decisions & success).sum())
    bound = clopper_pearson(false, negatives, 0.95, "upper")[1]
    low, high = clopper_pearson(hits, positives, 0.95)
    what = f"shipped classifier ({precision}), {config.scenes} fresh scenes"
    return [
        Row(
            "classifier",
            f"{what}: 95 % upper bound of the false-positive rate",
            100.0 * bound,
            "%",
            spread=f"{false} of {negatives} failures claimed",
            target="< 1 %",
            met=bound < 0.01,
            details={"by_category": found.categories, "precision": precision},
        ),
        Row(
            "classifier",
            f"{what}: recall on successes",
            100.0 * hits / positives,
            "%",
            low=100.0 * low,
            high=100.0 * high,
            spread=f"95 % interval; {hits} of {positives}",
            target="> 95 %",
            met=hits / positives > 0.95,
        ),
        *dead_camera_rows(config, bundle, images, np.flatnonzero(~success)),
    ]


def dead_camera_rows(
    config: BenchConfig,
    bundle: Bundle,
    images: npt.NDArray[np.uint8],
    failures: npt.NDArray[np.int64],
) -> list[Row]:
    """Count the dead-camera frames that are claimed, in FP32 and as the classifier is used.

    Args:
        config: half as many frames again as ``scenes``.
        bundle: whose classifier.
        images: (N, H, W, 3) uint8, scenes to damage.
        failures: numbers of those that are failures.
    """

    names = [*FAMILIES, *UNSEEN_FAMILIES]
    each = -(-3 * config.scenes // (2 * len(names)))
    drawn = dict(
        held_out(DEAD_PART, images, failures, seed=config.seed, count=each, families=names)
    )
    rows = []
    for precision in ("fp32", "auto"):
        with Classifier(bundle, precision=precision) as classifier:
            if precision == "auto" and classifier.precision == "fp32":
                continue
            claimed = {
                family: int((classifier.compute_reward(frames) > 0).sum())
                for family, frames in drawn.items()
            }
            how = "FP32" if precision == "fp32" else "INT8 with second looks"
        count, frames = sum(claimed.values()), each * len(names)
        low, high = clopper_pearson(count, frames, 0.95)
        unseen = sum(claimed[family] for family in UNSEEN_FAMILIES)
        rows.append(
            Row(
                "classifier",
                f"{how}: dead-camera frames claimed",
                100.0 * count / frames,
                "%",
                low=100.0 * low,
                high=100.0 * high,
                spread=f"95 % interval; {count} of {frames}, {unseen} of them of the "
                f"{len(UNSEEN_FAMILIES)} families that training does not show",
                target="< 1 %",
                met=count < 0.01 * frames,
                details={"claimed": claimed, "frames_each": each},
            )
        )
    return rows
