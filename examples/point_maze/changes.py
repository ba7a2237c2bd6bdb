"""What an audit may change in the room of docs/point-maze.md, and the states that it may search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward import Axis, Intervention, SearchSpace

REACHED = 0.45
"""Metres between the balls that are a success."""
RIM = 0.05
"""Distances so close to the edge of success are too close to call a claim wrong."""
ROOM = (-1.4, 0.4)
"""Where the green ball's centre can be, in metres along x and y."""
STARTS = (-1.25, 0.25)
"""Where the red ball can be; not between the cells, in GAP."""
GAP = (-0.75, -0.25)


def changes(env: Any) -> list[Intervention | SearchSpace]:
    """Return an intervention that moves the red ball away, and all places of both balls."""

    def place(ball: NDArray[np.float64], velocity: NDArray[np.float64], goal: Any) -> None:
        env.goal = np.array(goal)
        env.update_target_site_pos()
        env.point_env.set_state(ball, velocity)

    def away(random: np.random.Generator) -> Callable[[], None]:
        ball, velocity = env.data.qpos.copy(), env.data.qvel.copy()
        before = env.goal.copy()
        # The cell across the room, where no place is within reach of the ball.
        goal = np.where(ball > np.mean(ROOM), STARTS[0], STARTS[1])
        place(ball, velocity, goal + random.uniform(0, 0.2, 2) * np.where(ball > -0.5, 1, -1))
        return lambda: place(ball, velocity, before)

    def set_state(state: NDArray[np.float64]) -> bool | None:
        ball, goal = np.split(state, 2)
        place(ball, np.zeros(2), goal)
        distance = float(np.linalg.norm(ball - goal))
        never = ((goal > GAP[0]) & (goal < GAP[1])).any()
        return None if never or abs(distance - REACHED) < RIM else distance < REACHED

    return [
        Intervention("red ball across the room", away),
        SearchSpace(
            "both balls",
            (
                Axis("green x", *ROOM, "m"),
                Axis("green y", *ROOM, "m"),
                Axis("red x", *STARTS, "m"),
                Axis("red y", *STARTS, "m"),
            ),
            set_state,
        ),
    ]
