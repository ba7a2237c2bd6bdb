"""Frames of the hover scene: where arm and object are placed, and the frame's category.

A frame depends on its seed and number alone, however often a capture was stopped and resumed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward_envs.auditing import AROUND, HEIGHTS
from vinoreward_envs.camera.spec import CameraSpec, camera_eye
from vinoreward_envs.constants import (
    FIXED_OBJECT,
    HOVER_HEIGHT,
    OBJECT_MARGIN,
    SUCCESS_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from vinoreward_envs.scene import HoverScene

if TYPE_CHECKING:
    import gymnasium

CATEGORIES = (
    "success", "near_miss", "far", "absent", "elsewhere", "home", "moved_after_arrival", "outside",
    "height",
)  # fmt: skip
"""Every kind of hover frame; all but the first are failures."""
NEAR_MISS_DISTANCE = 0.10
"""Failures closer than this (metres) are near misses."""
HEIGHT_TOLERANCE = 0.01
"""A gripper further than this (metres) from hover height is not hovering."""
FIXED_SHARE = 0.1
"""Share of scenes with the object near its place in ``PandaHover-v0``, where policies train."""
FRESH = 0xF4E5
"""Mixed into the seed, so that no capture of any seed has the same frames."""

Point = tuple[float, float]
Random = np.random.Generator


@dataclass(frozen=True)
class Placement:
    """Where things are placed before the image is taken."""

    gripper: Point | None
    """None leaves the arm at home."""
    object_first: Point | None
    """While the arm moves; None for no object."""
    object_last: Point | None
    """When the image is taken; None for no object."""
    height: float = HOVER_HEIGHT
    """Of the gripper."""


@dataclass(frozen=True)
class HoverFrame:
    """One image with its truth; places in metres."""

    image: npt.NDArray[np.uint8]
    """``(H, W, 3)``."""
    success: bool
    """The simulator's verdict."""
    category: str
    """One of ``CATEGORIES``."""
    gripper: Point
    object: Point | None
    """None when absent."""
    distance: float
    """Horizontal, between them; infinite when absent."""


def _anywhere(random: Random, margin: float = 0.0) -> Point:
    low, high = np.asarray(WORKSPACE_LOW) + margin, np.asarray(WORKSPACE_HIGH) - margin
    x, y = random.uniform(low, high).tolist()
    return x, y


def _object(random: Random) -> Point:
    if random.random() < FIXED_SHARE:
        x, y = (np.asarray(FIXED_OBJECT) + random.uniform(-0.01, 0.01, 2)).tolist()
        return x, y
    return _anywhere(random, OBJECT_MARGIN)


def _object_outside(random: Random) -> Point:
    """Draw a place that no object inside the workspace has."""
    while True:
        x, y = _anywhere(random, -AROUND)
        beyond = np.subtract(WORKSPACE_LOW, (x, y)), np.subtract((x, y), WORKSPACE_HIGH)
        if np.max(beyond) > -OBJECT_MARGIN:
            return x, y


def _around(random: Random, centre: Point, radius: Callable[[Random], float]) -> Point:
    """Draw a point of the workspace at a random angle and ``radius`` from ``centre``."""
    while True:
        angle, distance = random.uniform(0, 2 * math.pi), radius(random)
        point = (centre[0] + distance * math.cos(angle), centre[1] + distance * math.sin(angle))
        if all(np.less_equal(WORKSPACE_LOW, point)) and all(np.less_equal(point, WORKSPACE_HIGH)):
            return point


def _away(random: Random, gripper: Point) -> Point:
    """Draw an object position that is no near miss of ``gripper``."""
    while True:
        point = _object(random)
        if math.dist(point, gripper) > NEAR_MISS_DISTANCE:
            return point


def raised(random: Random, objects: Callable[[Random], Point]) -> Placement:
    """Draw a gripper above hover height that looks as if it hovered, and one of ``objects``.

    Each of these must be closer than the success distance to some place of the workspace.

    A quarter of them are above the object. The others are on the line from a place near the
    object, where the gripper would hover, to the default camera: both meet in the image. They
    reach farther than a success: a classifier taught with those alone claimed the next ones.
    """
    eye = camera_eye()
    while True:
        obj = objects(random)
        height = random.uniform(*HEIGHTS)
        if random.random() < 0.25:
            return Placement(_around(random, obj, in_disc), obj, obj, height)
        place = _around(random, obj, lambda one: NEAR_MISS_DISTANCE * one.random())
        share = (height - HOVER_HEIGHT) / (eye[2] - HOVER_HEIGHT)
        x, y = ((1 - share) * np.asarray(place) + share * eye[:2]).tolist()
        if all(np.less_equal(WORKSPACE_LOW, (x, y))) and all(np.less_equal((x, y), WORKSPACE_HIGH)):
            return Placement((x, y), obj, obj, height)


def in_disc(random: Random) -> float:
    """Radius of a point drawn uniformly from the success disc."""
    return SUCCESS_DISTANCE * math.sqrt(random.random())


def in_ring(random: Random) -> float:
    """Radius of a point drawn uniformly from the area of near misses.

    Not denser towards the boundary: the threshold's error rate is counted on these frames. The
    distance loss of ``vinoreward finetune`` learns the boundary from every near miss.
    """
    return math.sqrt(random.uniform(SUCCESS_DISTANCE**2, NEAR_MISS_DISTANCE**2))


def draw(category: str, random: Random) -> Placement:
    """Draw a placement for ``category``, one of ``CATEGORIES``."""
    obj = _object(random)
    if category in {"success", "near_miss"}:
        gripper = _around(random, obj, in_disc if category == "success" else in_ring)
        return Placement(gripper, obj, obj)
    if category == "absent":
        # Half of them where the object was: the arm's pose must not give the label away.
        gripper = _around(random, obj, in_disc) if random.random() < 0.5 else _anywhere(random)
        return Placement(gripper, obj, None)
    if category == "home":
        return Placement(None, None, obj if random.random() < 0.5 else None)
    if category == "moved_after_arrival":
        gripper = _around(random, obj, in_disc)
        if random.random() < 0.5:
            return Placement(gripper, obj, _around(random, gripper, in_ring))
        return Placement(gripper, obj, _away(random, gripper))
    if category == "outside":
        place = _object_outside(random)
        # Half of them as near as the gripper may go.
        near = np.clip(place + random.uniform(-0.05, 0.05, 2), WORKSPACE_LOW, WORKSPACE_HIGH)
        gripper = (float(near[0]), float(near[1])) if random.random() < 0.5 else _anywhere(random)
        return Placement(gripper, place, place)
    if category == "height":
        return raised(random, _object)
    if category == "elsewhere":
        # The gripper goes where the fixed task has its object, which is somewhere else.
        gripper = _around(random, (FIXED_OBJECT[0], FIXED_OBJECT[1]), in_disc)
    else:
        gripper = _anywhere(random)
    place = _away(random, gripper)
    return Placement(gripper, place, place)


def category_of(index: int) -> str:
    """Return the category of frame ``index``: a third each success, near miss and others.

    Of the others a quarter are raised hands, the hardest to tell from successes.
    """
    if index % 3 < 2:
        return CATEGORIES[index % 3]
    others = (*CATEGORIES[2:], "height")
    return others[(index // 3) % len(others)]


def take(
    scene: HoverScene,
    placement: Placement,
    category: str,
    render: Callable[[], Any] | None = None,
) -> HoverFrame:
    """Put arm and object in place, take the image with ``render``, and say what it shows."""
    scene.place_object(placement.object_first)
    scene.home()
    if placement.gripper is not None:
        scene.move_gripper(placement.gripper, placement.height)
    if placement.object_last != placement.object_first:
        scene.place_object(placement.object_last)
    distance = float(scene.distance())
    gripper = np.asarray(scene.gripper, dtype=np.float64)
    hovering = abs(float(gripper[2]) - HOVER_HEIGHT) <= HEIGHT_TOLERANCE
    success = distance <= SUCCESS_DISTANCE and hovering
    if success:
        category = "success"
    elif category == "success":
        category = "near_miss"
    where = scene.object_xy
    return HoverFrame(
        image=np.array((render or scene.render)(), dtype=np.uint8),
        success=success,
        category=category,
        gripper=(float(gripper[0]), float(gripper[1])),
        object=None if where is None else (float(where[0]), float(where[1])),
        distance=distance,
    )


def hover_frame(env: gymnasium.Env[Any, Any], seed: int, index: int) -> HoverFrame:
    """Take frame ``index`` of the capture with ``seed`` in a hover environment.

    It is reset first, as one that is derived from ours may vary more between episodes.
    """
    random = np.random.default_rng([seed, index])
    category = category_of(index)
    env.reset(seed=int(np.random.default_rng([seed, index, 0xE5]).integers(2**31)))
    hover: Any = env.unwrapped
    while True:
        try:
            return take(hover.scene, draw(category, random), category, env.render)
        except InputError:  # the arm reaches every place at hover height, but not at each other
            if category != "height":
                raise


def fresh_category(index: int) -> str:
    """Return the category of fresh scene ``index``: a quarter each success, near miss, far, and
    object removed or moved away after the arm arrived.
    """
    if index % 4 < 3:
        return ("success", "near_miss", "far")[index % 4]
    return ("absent", "moved_after_arrival")[(index // 4) % 2]


def fresh_scenes(
    count: int = 2000, seed: int = 1, *, camera: CameraSpec | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """Draw scenes that no capture has seen; the default camera if None.

    Successes are uniform in the success disc and near misses uniform in the ring around it. Returns
    images (N, H, W, 3) uint8, labels (N,) int64 with 1 = success, and categories (N,).
    """
    frames = []
    with contextlib.closing(HoverScene(camera=camera or CameraSpec())) as scene:
        for index in range(count):
            category = fresh_category(index)
            random = np.random.default_rng([FRESH, seed, index])
            frames.append(take(scene, draw(category, random), category))
    return (
        np.stack([frame.image for frame in frames]),
        np.array([frame.success for frame in frames], dtype=np.int64),
        np.array([frame.category for frame in frames]),
    )
