"""Who plays Gymnasium-Robotics' PointMaze for a capture: at random it seldom succeeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def act(observation: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the force, in [-1, 1], that takes the ball to a place and stops it there.

    In half of the episodes the place is 20 to 30 cm from the goal: further in, the goal hides the
    ball. In the others it is anywhere in the room or beyond its walls, which hide the ball too.
    """
    return _go(observation, 0.5)


def straight(observation: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Likewise, but three episodes of four go to the goal, for a capture that teaches progress."""
    return _go(observation, 0.75)


def _go(observation: Mapping[str, NDArray[np.float64]], share: float) -> NDArray[np.float64]:
    goal = observation["desired_goal"]
    # The goal is fixed in an episode, so its last digits tell episodes apart.
    luck = np.random.default_rng(goal.view(np.uint64))
    if luck.random() < share:
        angle = luck.uniform(0, 2 * np.pi)
        aim = goal + luck.uniform(0.2, 0.3) * np.array([np.cos(angle), np.sin(angle)])
    else:
        aim = luck.uniform(-2.5, 1.5, 2)
    place, velocity = np.split(observation["observation"], 2)
    return np.clip(10 * (aim - place) - 3 * velocity, -1, 1)
