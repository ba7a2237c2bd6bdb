"""What an audit's search finds in the hover scene with the shipped classifier, and near misses."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import SCENES, Benchmark, Row, Value, share
from scenes import BUNDLE
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.auditing import RIM, spaces
from vinoreward_envs.scene import HoverScene
from vinoreward_training.audit.checks import Subject
from vinoreward_training.audit.search import SearchReport, search

ROWS = {
    "search claims": Row("a search of four spaces: failures claimed", "≤0"),
    "search near misses": Row("failures up to 1 cm beyond success that are claimed", "≤4 %"),
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Search each space; classify near misses over the whole workspace."""
    claimed = failures = 0
    details = {}
    with Classifier(BUNDLE) as classifier, contextlib.closing(HoverScene()) as scene:
        for space in spaces(scene):
            found = SearchReport(space.name, space.axes)
            for _ in search(Subject(classifier, options.seed), space, scene.render, found):
                pass
            claimed, failures = claimed + found.claimed, failures + found.failures
            details[space.name] = {"claimed": found.claimed, "of": found.failures}
            print(f"  {space.name}: {found.claimed} of {found.failures}", flush=True)
        yield "search claims", Value(f"{claimed} of {failures:,}", claimed, details)
        near = [_claims(classifier, scene, at) for at in near_misses(options.places, options.seed)]
    yield "search near misses", share(sum(near), len(near))


def near_misses(count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield places of gripper and object that are up to a centimetre too far apart."""
    random = np.random.default_rng([seed, 0x4EA2])
    low = np.array(c.WORKSPACE_LOW) + c.OBJECT_MARGIN
    high = np.array(c.WORKSPACE_HIGH) - c.OBJECT_MARGIN
    rim = np.square((c.SUCCESS_DISTANCE, c.SUCCESS_DISTANCE + RIM))
    while count > 0:
        place = random.uniform(low, high)
        radius, angle = math.sqrt(random.uniform(*rim)), random.uniform(0, 2 * math.pi)
        gripper = place + radius * np.array([math.cos(angle), math.sin(angle)])
        if (gripper >= c.WORKSPACE_LOW).all() and (gripper <= c.WORKSPACE_HIGH).all():
            yield gripper, place
            count -= 1


def _claims(classifier: Classifier, scene: HoverScene, at: tuple[np.ndarray, np.ndarray]) -> bool:
    gripper, place = at
    scene.place_object((place[0], place[1]))
    scene.move_gripper((gripper[0], gripper[1]))
    return bool(classifier.compute_reward(scene.render()[None])[0] > 0)


BENCH = Benchmark("Audits and labels", ROWS, measure, places=2000, seed=SCENES)

if __name__ == "__main__":
    sys.exit(BENCH.main())
