"""robosuite's Lift in robosuite's own GymWrapper, as the environment ``Lift-v0``.

robosuite knows whether the cube is lifted and does not say it in ``info``; what it draws is upside
down, as OpenGL counts rows from below; and GymWrapper calls the end of time a termination.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import robosuite
from robosuite.wrappers import GymWrapper


class Lift(gym.Wrapper[Any, Any, Any, Any]):
    """GymWrapper with images, seeds and time limits as Gymnasium has them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        render_mode: str | None = None,
        camera: str = "agentview",
        height: int = 128,
        width: int = 128,
    ) -> None:
        suite = robosuite.make(
            "Lift",
            robots="Panda",
            has_renderer=False,
            has_offscreen_renderer=render_mode == "rgb_array",
            use_camera_obs=False,  # it would draw in every step
            ignore_done=True,  # max_episode_steps ends an episode
        )
        super().__init__(GymWrapper(suite))
        self._mode, self._drawn = render_mode, (camera, height, width)

    @property
    def render_mode(self) -> str | None:
        """Return None or ``"rgb_array"``."""
        return self._mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed goes to what places the cube."""
        if seed is not None:
            state = np.random.default_rng(seed).bit_generator.state
            self.unwrapped.rng.bit_generator.state = state
        return self.env.reset(options=options)

    def render(self) -> Any:
        """Return the camera's image, the right way up."""
        camera, height, width = self._drawn
        simulation = self.unwrapped.sim
        return simulation.render(height=height, width=width, camera_name=camera)[::-1].copy()


def lifted(env: Any) -> bool:
    """Return whether the cube is lifted, for ``--truth``."""
    return bool(env._check_success())


gym.register("Lift-v0", Lift, max_episode_steps=200)
