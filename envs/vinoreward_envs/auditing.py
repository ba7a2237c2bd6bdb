"""What an audit may change in the hover scene, and where it may search."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import InputError
from vinoreward.rewards.interventions import Axis, Intervention, SearchSpace, Undo
from vinoreward_envs import constants as c
from vinoreward_envs.randomization import DRAWS, DomainRandomization
from vinoreward_envs.scene import HoverScene

RIM = 0.01
"""Metres beyond the success distance that are too close to call a claim wrong."""
AROUND = 0.15
"""Objects are searched up to this far (metres) outside the workspace."""
HEIGHTS = (0.18, 0.25)
"""Heights of a gripper that does not hover, in metres. At 5 cm above hover height a single camera
can hardly tell it from one that hovers a little aside."""

Point = tuple[float, float]
State = NDArray[np.float64]


def interventions(scene: HoverScene) -> list[Intervention]:
    """Return changes after which a success is none: object or arm taken elsewhere."""

    def place(xy: Point | None) -> Undo:
        before = scene.object_xy
        scene.place_object(xy)
        return lambda: scene.place_object(before)

    def elsewhere(random: np.random.Generator) -> Point:
        while True:
            x, y = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH).tolist()
            if math.dist((x, y), scene.gripper[:2]) > 3 * c.SUCCESS_DISTANCE:
                return (x, y)

    def move_arm(random: np.random.Generator) -> Undo:
        x, y = scene.gripper[:2].tolist()
        scene.move_gripper(elsewhere(random))
        return lambda: scene.move_gripper((x, y))

    return [
        Intervention("object removed", lambda random: place(None)),
        Intervention("object moved", lambda random: place(elsewhere(random))),
        Intervention("arm moved", move_arm),
    ]


def spaces(
    scene: HoverScene, randomization: DomainRandomization | None = None
) -> list[SearchSpace]:
    """Return the states that an audit searches, in metres, without those at the rim of success.

    The gripper anywhere above the workspace: with no object, with one on the table, with one
    outside the workspace, and at another height. Where ``randomization`` varies each state looks
    as drawn from it, the same state always the same.
    """

    def reached(gripper: State, place: Point | None) -> bool | None:
        if randomization is not None and randomization.varies:
            state = np.concatenate([gripper, () if place is None else place])
            random = np.random.default_rng(state.view(np.uint64).tolist())
            scene.look(randomization.draw(random.random((1, DRAWS))))
        scene.place_object(place)
        try:
            scene.move_gripper((gripper[0], gripper[1]), *gripper[2:])
        except InputError:  # out of the arm's reach
            return None
        distance = scene.distance()
        if c.SUCCESS_DISTANCE < distance <= c.SUCCESS_DISTANCE + RIM:
            return None
        return distance <= c.SUCCESS_DISTANCE

    def absent(state: State) -> bool | None:
        return reached(state, None)

    def inside(state: State) -> bool | None:
        return reached(state[:2], (state[2], state[3]))

    def outside(state: State) -> bool | None:
        place = state[2:]
        within = (place >= c.WORKSPACE_LOW).all() and (place <= c.WORKSPACE_HIGH).all()
        return None if within else inside(state)

    def higher(state: State) -> bool | None:
        near = reached(state[:3], (state[3], state[4]))
        return None if near is None else False

    gripper, place, around = _axes("gripper"), _axes("object"), _axes("object", AROUND)
    height = Axis("gripper z", *HEIGHTS, "m")
    return [
        SearchSpace("object removed", gripper, absent),
        SearchSpace("object on the table", gripper + place, inside),
        SearchSpace("object outside the workspace", gripper + around, outside),
        SearchSpace("gripper at another height", (*gripper, height, *place), higher),
    ]


def _axes(what: str, margin: float = 0.0) -> tuple[Axis, Axis]:
    """Return x and y of the workspace and a margin around it."""
    (x, y), (to_x, to_y) = c.WORKSPACE_LOW, c.WORKSPACE_HIGH
    return (
        Axis(f"{what} x", x - margin, to_x + margin, "m"),
        Axis(f"{what} y", y - margin, to_y + margin, "m"),
    )
