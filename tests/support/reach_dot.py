"""A task that is learned in a minute: a blue dot moves to a red one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

SIDE, DOT = 48, 6
NEAR = 0.3
"""Distance, in units of half an image, of a success."""


class ReachDot(gym.Env[np.ndarray, np.ndarray]):
    """Observation (4,): both positions, in -1 to 1; action (2,): a move in fifths of that."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.dots = np.zeros((2, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.dots = self.np_random.uniform(-0.8, 0.8, (2, 2)).astype(np.float32)
        return self.dots.ravel().copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.dots[0] = np.clip(self.dots[0] + 0.2 * np.asarray(action), -0.8, 0.8)
        near = float(np.linalg.norm(self.dots[0] - self.dots[1])) < NEAR
        return self.dots.ravel().copy(), 0.0, False, False, {"is_success": near}

    def render(self) -> Any:
        image = np.full((SIDE, SIDE, 3), 90, np.uint8)
        for (x, y), colour in zip(self.dots, ((40, 40, 250), (250, 40, 40)), strict=True):
            row, column = (round((one + 1) / 2 * (SIDE - DOT)) for one in (y, x))
            image[row : row + DOT, column : column + DOT] = colour
        return image


gym.register("ReachDot-v0", entry_point="reach_dot:ReachDot", max_episode_steps=20)
