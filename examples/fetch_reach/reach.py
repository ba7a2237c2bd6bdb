"""Who plays Gymnasium-Robotics' FetchReach for a capture: at random it hardly ever succeeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def act(observation: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the action that moves the gripper to the goal, at most 5 cm in a step."""
    way = observation["desired_goal"] - observation["achieved_goal"]
    return np.append(np.clip(20 * way, -1, 1), 0)
