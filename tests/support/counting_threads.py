"""An environment that says on how many threads its process computes."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np


class CountsThreads(gym.Env[Any, Any]):
    """PyTorch is loaded after the process was told, or before it was forked."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def threads(self) -> tuple[int, str | None, str | None]:
        """Return PyTorch's threads, and what two other libraries are told."""
        import torch

        told = os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")
        return torch.get_num_threads(), *told

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}


gym.register("CountsThreads-v0", entry_point="counting_threads:CountsThreads")
