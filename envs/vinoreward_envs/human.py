"""A window that shows what an environment renders."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import HumanRendering
from numpy.typing import NDArray

from vinoreward.errors import MissingDisplayError, needed_for

_SMALLEST_SIDE = 480
"""Pixels of a window."""


def has_display() -> bool:
    """Return whether a window can be opened; elsewhere than on Linux assume so."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or not sys.platform.startswith("linux")


def open_display(what: str, extra: str, instead: str) -> Any:
    """Return pygame with its display open, which ``what`` needs.

    Raises:
        MissingDisplayError: there is no display; says what to use ``instead``.
        MissingExtraError: pygame is not installed; says which ``extra`` has it.
    """
    with needed_for(what, extra):
        import pygame
    pygame.display.init()
    if pygame.display.get_driver() == "offscreen":  # SDL's choice where it can open no window
        pygame.display.quit()
        raise MissingDisplayError(
            "Found no display that opens a window (see DISPLAY or WAYLAND_DISPLAY); "
            f"{what} needs one. Use {instead}."
        )
    return pygame


class _Enlarged(gym.Wrapper[Any, Any, Any, Any]):
    """Renders a small image as a multiple of its size."""

    def render(self) -> NDArray[np.uint8]:
        image = np.asarray(self.env.render(), np.uint8)
        zoom = max(1, _SMALLEST_SIDE // min(image.shape[:2]))
        return image.repeat(zoom, axis=0).repeat(zoom, axis=1)


def in_a_window(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Show images of an environment that renders ``"rgb_array"``; raises as `open_display`."""
    instead = 'render_mode="rgb_array", or "vinoreward play", which writes a GIF'
    open_display('render_mode="human"', "panda", instead)
    return HumanRendering(_Enlarged(env))
