"""A gripper above a row of places, seen from the front and from above, one of them often hidden."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 48, 64
REACH = 0.06
"""Distance within which the gripper is above the object, in widths of the image."""


class TwoCameras(gym.Env[dict[str, Any], Any]):
    """Move the gripper above the object. In two of five moments an arm is before either camera.

    Each camera alone shows all there is to know, unless it is hidden. Actions move the gripper by
    up to a tenth; ``info["success"]`` says whether it is above the object.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        image = gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        numbers = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"front": image, "top": image, "state": numbers})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put gripper and object somewhere."""
        super().reset(seed=seed)
        self.object, self.gripper = self.np_random.uniform(0.15, 0.85, 2)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move the gripper."""
        self.gripper = float(np.clip(self.gripper + 0.1 * float(action[0]), 0.1, 0.9))
        self.steps += 1
        success = abs(self.gripper - self.object) < REACH
        return self._observe(), 0.0, False, self.steps >= 12, {"success": success}

    def render(self) -> NDArray[np.uint8]:
        """Return what the front camera sees."""
        return self._front

    def _observe(self) -> dict[str, Any]:
        grip, thing = round(self.gripper * WIDTH), round(self.object * WIDTH)
        front = np.full((HEIGHT, WIDTH, 3), 170, np.uint8)
        front[40:] = (120, 100, 80)
        front[32:40, thing - 4 : thing + 4] = (200, 40, 40)
        front[:26, grip - 2 : grip + 2] = (230, 220, 60)
        front[22:26, grip - 5 : grip + 5] = (230, 220, 60)
        top = np.full((HEIGHT, WIDTH, 3), (120, 100, 80), np.uint8)
        top[20:28, thing - 4 : thing + 4] = (200, 40, 40)
        top[16:32, grip - 6 : grip - 4] = top[16:32, grip + 4 : grip + 6] = (230, 220, 60)
        hidden = self.np_random.random()
        if hidden < 0.8:
            # An arm before the object; its edges say nothing of the gripper.
            seen, width = front if hidden < 0.4 else top, int(self.np_random.integers(28, 40))
            left = max(0, thing + int(self.np_random.integers(-8, 9)) - width // 2)
            seen[:, left : left + width] = (60, 50, 45)
        images = [
            np.clip(one + self.np_random.normal(0, 4, one.shape), 0, 255).astype(np.uint8)
            for one in (front, top)
        ]
        self._front = images[0]
        state = np.array([self.gripper, self.object], np.float32)
        return {"front": images[0], "top": images[1], "state": state}


gym.register("TwoCameras-v0", entry_point=TwoCameras)
