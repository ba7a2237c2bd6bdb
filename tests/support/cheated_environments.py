"""An environment of numbers that claims successes, truly or not, as a learned reward would."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Cheated(gym.Env[np.ndarray, int]):
    """Episodes of ``length`` steps that end with a claim; ``true`` and ``ood`` say what it is."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, true: bool = False, ood: bool = False, length: int = 4) -> None:
        self.true, self.ood, self.length = true, ood, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ended = self.steps == self.length
        info = {
            "is_success": ended,
            "true_success": ended and self.true,
            "reward_prob": float(ended),
            # In the middle of the episode, not at its end.
            "reward_ood": 1.5 if self.ood and self.steps == 2 else 0.5,
        }
        return np.full(1, self.steps, np.float32), float(ended), ended, False, info


gym.register("Cheated-v0", entry_point="cheated_environments:Cheated")
