"""An environment that waits, for :mod:`.cluster_checks`: actors import nothing else for it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Waiting(gym.Env[Any, Any]):
    """Its steps take ``seconds`` and no processor, as a robot's do; observations are random."""

    def __init__(self, seconds: float) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, which takes no time."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait."""
        time.sleep(self._seconds)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), 0.0, False, False, {}
