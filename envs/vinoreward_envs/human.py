"""A window that shows what an environment renders."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import HumanRendering
from numpy.typing import NDArray

from vinoreward.errors import MissingDisplayError, needed_for

_SMALLEST_SIDE = 480
"""Pixels of a window."""


class _Enlarged(gym.Wrapper[Any, Any, Any, Any]):
    """Renders a small image as a multiple of its size."""

    def render(self) -> NDArray[np.uint8]:
        image = np.asarray(self.env.render(), np.uint8)
        zoom = max(1, _SMALLEST_SIDE // min(image.shape[:2]))
        return image.repeat(zoom, axis=0).repeat(zoom, axis=1)


def in_a_window(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Show each image of an environment whose render mode is ``"rgb_array"`` in a window.

    Raises:
        MissingDisplayError: there is no display.
        MissingExtraError: pygame is not installed.
    """
    with needed_for('render_mode="human"', "panda"):
        import pygame
    pygame.display.init()
    if pygame.display.get_driver() == "offscreen":  # SDL's choice where it can open no window
        pygame.display.quit()
        raise MissingDisplayError(
            "Found no display that opens a window (see DISPLAY or WAYLAND_DISPLAY); "
            'render_mode="human" needs one. Use render_mode="rgb_array", or "vinoreward play", '
            "which writes a GIF."
        )
    return HumanRendering(_Enlarged(env))
