"""Whether the shipped classifier decides rightly, and INT8 as FP32 does."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import SCENES, Benchmark, Row, Value, rare, share
from scenes import Images, shipped
from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.constants import SUCCESS_DISTANCE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.making import spec_of
from vinoreward_envs.scene import HoverScene
from vinoreward_training.capture.hover import CATEGORIES, draw, fresh_scenes, take
from vinoreward_training.classifier.camera_failure import FAMILIES, UNSEEN_FAMILIES, held_out

DEAD_PART = 3
"""Dead-camera images of the benchmark: neither validation's (1) nor test's (2)."""
RIM = 0.015
"""Metres around the success radius, for images near the boundary."""
ROWS = {
    "classifier false positives": Row(
        "fresh scenes, the object removed or moved in a quarter: false positives", "<1 %"
    ),
    "classifier recall": Row("… recall", ">95 %"),
    "classifier dead camera": Row("… images of a failing camera, of 22 kinds: claimed", "<1 %"),
    "int8 flips": Row("INT8 against FP32 near the boundary: decisions flipped", "≤0.5 %"),
    "int8 flips alone": Row("… without the second look by FP32"),
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Classify fresh scenes and dead cameras, then images near the boundary."""
    bundle = shipped()
    images, labels, _ = fresh_scenes(options.scenes, options.seed, camera=spec_of(bundle))
    families = [*FAMILIES, *UNSEEN_FAMILIES]
    failures = np.flatnonzero(labels == 0)
    count = -(-3 * options.scenes // (2 * len(families)))
    dead = held_out(DEAD_PART, images, failures, seed=options.seed, count=count, families=families)
    with Classifier(bundle) as classifier:
        claimed = classifier.compute_reward(images) > 0
        dead_claims = sum(int((classifier.compute_reward(each) > 0).sum()) for _, each in dead)
    yield "classifier false positives", rare(int(claimed[failures].sum()), len(failures))
    yield "classifier recall", share(int(claimed[labels == 1].sum()), int((labels == 1).sum()))
    yield "classifier dead camera", rare(dead_claims, count * len(families))
    yield from _flips(bundle, boundary_images(bundle, options.scenes, options.seed))


def _flips(bundle: Bundle, images: Images) -> Iterator[tuple[str, Value]]:
    """Count the decisions of INT8 that differ from FP32's."""
    alone = dataclasses.replace(bundle.spec.decision, int8_band=None)
    unaided = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=alone))

    def claims(bundle: Bundle, precision: str) -> npt.NDArray[np.bool_]:
        with Classifier(bundle, precision=precision, guarded=False) as classifier:
            return np.asarray(classifier.compute_reward(images) > 0)

    exact = claims(bundle, "fp32")
    yield "int8 flips", rare(int((exact != claims(bundle, "auto")).sum()), len(images))
    yield "int8 flips alone", share(int((exact != claims(unaided, "auto")).sum()), len(images))


def boundary_images(bundle: Bundle, count: int, seed: int) -> Images:
    """Return images, four of five with the gripper near the success radius."""
    images = []
    with HoverScene(camera=spec_of(bundle)) as scene:
        for index in range(count):
            random = np.random.default_rng([seed, 1, index])
            # The fifth is anything that a capture holds.
            category = "near_miss" if index % 5 else CATEGORIES[index // 5 % len(CATEGORIES)]
            placement = draw(category, random)
            if index % 5 and placement.object_last is not None:
                gripper = _near_boundary(random, placement.object_last)
                placement = dataclasses.replace(placement, gripper=gripper)
            images.append(take(scene, placement, category).image)
    return np.stack(images)


def _near_boundary(random: np.random.Generator, centre: tuple[float, float]) -> tuple[float, float]:
    """Draw a point of the workspace near the success radius around ``centre``."""
    while True:
        angle = random.uniform(0.0, 2.0 * math.pi)
        radius = random.uniform(SUCCESS_DISTANCE - RIM, SUCCESS_DISTANCE + RIM)
        point = np.array(centre) + radius * np.array([math.cos(angle), math.sin(angle)])
        if ((point >= WORKSPACE_LOW) & (point <= WORKSPACE_HIGH)).all():
            return float(point[0]), float(point[1])


BENCH = Benchmark("Learned rewards", ROWS, measure, scenes=2000, seed=SCENES)

if __name__ == "__main__":
    sys.exit(BENCH.main())
