"""Bench rows about trust: the classifier on scenes and frames it has not seen, FP32 and INT8."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.constants import SUCCESS_DISTANCE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.bench.rows import Row, share_row
from vinoreward_training.bench.speed import scene_camera
from vinoreward_training.classifier.dead_camera import FAMILIES, UNSEEN_FAMILIES, held_out
from vinoreward_training.classifier.evaluation import evaluate_classifier
from vinoreward_training.configs import BenchConfig
from vinoreward_training.data.capture_hover import CATEGORIES, draw, fresh_scenes, take

DEAD_PART = 3
"""Dead-camera frames of the bench: neither validation's (1) nor test's (2)."""
Pictures = npt.NDArray[np.uint8]
Claims = npt.NDArray[np.bool_]


def classifier_rows(config: BenchConfig) -> list[Row]:
    """Judge scenes no capture has seen: false positives with their upper bound, and recall.

    And pictures of a failing camera, of families that training shows and of others.
    """
    bundle = Bundle.load(config.bundle)
    images, labels, categories = fresh_scenes(
        config.scenes, config.seed, camera=scene_camera(bundle)
    )
    names = [*FAMILIES, *UNSEEN_FAMILIES]
    each = -(-3 * config.scenes // (2 * len(names)))
    failures = np.flatnonzero(labels == 0)
    frames = held_out(DEAD_PART, images, failures, seed=config.seed, count=each, families=names)
    with Classifier(bundle) as classifier:
        found = evaluate_classifier(classifier, images, labels, categories)
        claimed = {
            family: int((classifier.compute_reward(drawn) > 0).sum()) for family, drawn in frames
        }
        precision = classifier.precision
    counts = found.rates
    what = f"shipped classifier ({precision}), {config.scenes} fresh scenes"
    unseen = sum(claimed[family] for family in UNSEEN_FAMILIES)
    return [
        Row(
            "classifier",
            f"{what}: 95 % upper bound of the false-positive rate",
            100.0 * counts.fpr_high,
            "%",
            spread=f"{counts.false_positives} of {len(failures)} failures claimed",
            target="< 1 %",
            details={"by_category": found.categories, "precision": precision},
        ),
        share_row(
            "classifier",
            f"{what}: recall on successes",
            counts.true_positives,
            int((labels == 1).sum()),
            target="> 95 %",
        ),
        share_row(
            "classifier",
            f"{'FP32' if precision == 'fp32' else 'INT8 with second looks'}: dead-camera frames "
            "claimed",
            sum(claimed.values()),
            each * len(names),
            spread=f", {unseen} of them of the {len(UNSEEN_FAMILIES)} families that training does "
            "not show",
            target="< 1 %",
            details={"claimed": claimed, "frames_each": each},
        ),
    ]


def int8_rows(config: BenchConfig) -> list[Row]:
    """Count the decisions that INT8 changes near the boundary, with and without second looks."""
    bundle = Bundle.load(config.bundle)
    what = "INT8 as the classifier uses it against FP32: decisions flipped on a boundary-rich set"
    target = "<= 0.5 %"
    if bundle.resolve_precision("openvino", "auto") != "int8":
        return [Row("int8", what, None, "%", target=target, note="no INT8 that passed")]
    images = boundary_pictures(config, bundle)
    alone = dataclasses.replace(bundle.spec.decision, int8_band=None)
    spec = dataclasses.replace(bundle.spec, decision=alone)
    exact, used, unaided = (
        _claims(one, images, precision)
        for one, precision in (
            (bundle, "fp32"),
            (bundle, "auto"),
            (dataclasses.replace(bundle, spec=spec), "auto"),
        )
    )
    flips = [int((exact != other).sum()) for other in (used, unaided)]
    band = {"band": bundle.spec.decision.int8_band}
    unaided_what = "INT8 without second looks: flipped on the same set"
    return [
        share_row("int8", what, flips[0], len(images), target=target, details=band),
        share_row("int8", unaided_what, flips[1], len(images)),
    ]


def boundary_pictures(config: BenchConfig, bundle: Bundle) -> Pictures:
    """Return ``config.scenes`` pictures, most of them with the gripper near the success radius."""
    pictures = []
    with contextlib.closing(HoverScene(camera=scene_camera(bundle))) as scene:
        for index in range(config.scenes):
            random = np.random.default_rng([config.seed, 1, index])
            # Four of five on the boundary, the fifth anything that a capture holds.
            category = "near_miss" if index % 5 else CATEGORIES[index // 5 % len(CATEGORIES)]
            placement = draw(category, random)
            if index % 5 and placement.object_last is not None:
                gripper = _near_boundary(random, placement.object_last)
                placement = dataclasses.replace(placement, gripper=gripper)
            pictures.append(take(scene, placement, category).image)
    return np.stack(pictures)


def _near_boundary(random: np.random.Generator, centre: tuple[float, float]) -> tuple[float, float]:
    """Draw a point of the workspace within 1.5 cm of the success radius around ``centre``."""
    while True:
        angle = random.uniform(0.0, 2.0 * math.pi)
        radius = random.uniform(SUCCESS_DISTANCE - 0.015, SUCCESS_DISTANCE + 0.015)
        x, y = centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)
        if (
            WORKSPACE_LOW[0] <= x <= WORKSPACE_HIGH[0]
            and WORKSPACE_LOW[1] <= y <= WORKSPACE_HIGH[1]
        ):
            return float(x), float(y)


def _claims(bundle: Bundle, images: Pictures, precision: str) -> Claims:
    with Classifier(bundle, precision=precision) as classifier:
        claimed: Claims = classifier.compute_reward(images) > 0
        return claimed
