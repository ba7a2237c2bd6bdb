"""What an audit may change in Gymnasium's Pendulum-v1, and the states that it may search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vinoreward import Axis, Intervention, SearchSpace

UPRIGHT = math.radians(15)
RIM = math.radians(3)
"""Angles so close to the edge of success are too close to call a claim wrong."""


def changes(env: Any) -> list[Intervention | SearchSpace]:
    """Return an intervention that lets the pendulum hang, and all its images to search."""

    def hang(random: np.random.Generator) -> Callable[[], None]:
        before = env.state
        env.state = np.array([math.pi + random.uniform(-1, 1), 0.0])
        return lambda: setattr(env, "state", before)

    def draw(state: np.ndarray) -> bool | None:
        env.state = np.array([state[0], 0.0])
        env.last_u = state[1]  # the arrow that the image shows
        angle = abs(state[0])
        return None if abs(angle - UPRIGHT) < RIM else angle < UPRIGHT

    torque = Axis("torque", -env.max_torque, env.max_torque, "N m")
    return [
        Intervention("pendulum hangs", hang),
        SearchSpace("pendulum", (Axis("angle", -math.pi, math.pi, "rad"), torque), draw),
    ]
