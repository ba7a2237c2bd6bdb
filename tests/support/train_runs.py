"""Trainings of a second, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward_training.configs import TrainConfig
from vinoreward_training.policy.train import SETTINGS

SMALL: dict[str, Any] = {
    "learning_starts": 40,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
}


def config(out: Path, **changes: Any) -> TrainConfig:
    """A run of a second: the oracle, a tiny network."""
    settings: dict[str, Any] = {
        "backend": "oracle",
        "timesteps": 120,
        "eval_every": 50,
        "eval_episodes": 1,
        "final_episodes": 3,
        "algorithm_kwargs": SMALL,
    }
    return SETTINGS.of(out=out, **{**settings, **changes})


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right three times; the claim is made one cell too early, the truth is the third."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.cell], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell += int(action)
        self.steps += 1
        info = {"is_success": self.cell >= 2, "true_success": self.cell == 3}
        return self.observe(), 1.0, False, self.steps == 4, info
