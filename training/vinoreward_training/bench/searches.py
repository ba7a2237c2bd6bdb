"""Rows of ``vinoreward bench``: what an audit's search finds in the hover scene."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.auditing import RIM, spaces
from vinoreward_envs.scene import HoverScene
from vinoreward_training.audit.battery import Battery
from vinoreward_training.audit.search import STATES, Searched, search
from vinoreward_training.audit.states import Images
from vinoreward_training.bench.rows import Row, share_row
from vinoreward_training.configs import BenchConfig

HOLES = 20
"""Holes that are planted, one at a time."""
NEAR_MISSES = 2000
"""Places of the gripper, up to a centimetre beyond success."""
_RADIUS = 0.01 / math.sqrt(math.pi)
"""Of 1 cm², in metres."""


def search_rows(config: BenchConfig) -> list[Row]:
    """Search the scene with the bundle, then with a hole of 1 cm² in it; count near misses."""
    rows = []
    with contextlib.ExitStack() as stack:
        classifier = stack.enter_context(Classifier(config.bundle))
        scene = stack.enter_context(contextlib.closing(HoverScene()))
        for space in spaces(scene):
            found = Searched(space.name, space.axes)
            for _ in search(classifier, space, scene.render, found, Battery(), seed=config.seed):
                pass
            claimed = sum(one.claimed for one in found.under)
            rows.append(
                Row(
                    "search",
                    f"{space.name}: area of false claims beyond {c.SUCCESS_DISTANCE + RIM:g} m",
                    1e4 * found.plane,
                    "cm2",
                    target="<= 0 cm2",
                    note=f"{found.claimed} of {found.failures} failures claimed (at most "
                    f"{found.rate_high:.2%}); {claimed} of "
                    f"{sum(one.failures for one in found.under)} under 31 shifts",
                )
            )
        rows += [_planted(classifier, scene, number, config.seed) for number in (0, 1)]
        rows.append(_near_misses(classifier, scene, config.seed))
    return rows


def _planted(classifier: Classifier, scene: HoverScene, number: int, seed: int) -> Row:
    """Count in how many of ``HOLES`` searches a planted hole is found.

    Where the gripper is in the hole, the classifier is shown an image of a success.
    """
    space = spaces(scene)[number]
    scene.place_object((0.55, 0.0))
    scene.move_gripper((0.55, 0.0))
    success = scene.render()
    caught = 0
    for hole in range(HOLES):
        random = np.random.default_rng([seed, hole])
        inner = np.array(c.WORKSPACE_LOW) + 0.01, np.array(c.WORKSPACE_HIGH) - 0.01
        middle = random.uniform(*inner)

        def image(middle: np.ndarray = middle) -> Images:
            inside = math.dist(scene.gripper[:2], middle) < _RADIUS
            return success if inside else scene.render()

        found = Searched(space.name, space.axes)
        for _ in search(classifier, space, image, found, Battery(), seed=hole, states=STATES):
            pass
        caught += any(math.dist(one.state[:2], middle) < _RADIUS for one in found.holes)
    return share_row(
        "search", f"{space.name}: planted holes of 1 cm2 that are found", caught, HOLES,
        target=">= 95 %",
    )  # fmt: skip


def _near_misses(classifier: Classifier, scene: HoverScene, seed: int) -> Row:
    """Count claims up to a centimetre beyond success, over the whole workspace."""
    random = np.random.default_rng([seed, 0x4EA2])
    low = np.array(c.WORKSPACE_LOW) + c.OBJECT_MARGIN
    high = np.array(c.WORKSPACE_HIGH) - c.OBJECT_MARGIN
    claimed = count = 0
    while count < NEAR_MISSES:
        place = random.uniform(low, high)
        rim = c.SUCCESS_DISTANCE, c.SUCCESS_DISTANCE + RIM
        radius, angle = math.sqrt(random.uniform(*np.square(rim))), random.uniform(0, 2 * math.pi)
        gripper = place + radius * np.array([math.cos(angle), math.sin(angle)])
        if (gripper < c.WORKSPACE_LOW).any() or (gripper > c.WORKSPACE_HIGH).any():
            continue
        scene.place_object((place[0], place[1]))
        scene.move_gripper((gripper[0], gripper[1]))
        judged = classifier.predict(scene.render()[None])
        ood = judged.ood_score is not None and judged.ood_score[0] > 1.0
        claimed += bool(judged.probability[0] >= np.float32(classifier.threshold)) and not ood
        count += 1
    return share_row(
        "search", "near misses, 3.5 to 4.5 cm, that are claimed", claimed, count, target="<= 4 %"
    )
