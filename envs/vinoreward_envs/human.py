"""A window that shows what an environment renders."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from vinoreward.errors import MissingDisplayError

_SMALLEST_SIDE = 480
"""Pixels of a window."""


def has_display() -> bool:
    """Return whether a window can be opened; elsewhere than on Linux assume so."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or not sys.platform.startswith("linux")


class HumanRendering(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Shows each image of an environment whose render mode is ``"rgb_array"`` in a window.

    Raises:
        MissingDisplayError: there is no display.
    """

    # Window, label and image: Tk shows an image only while it is referenced.
    _shown: tuple[Any, Any, Any] | None = None

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not has_display():
            raise MissingDisplayError(
                "Found no display (neither DISPLAY nor WAYLAND_DISPLAY is set); "
                'render_mode="human" opens a window and needs one. Use render_mode="rgb_array", or '
                '"vinoreward play", which writes a GIF.'
            )
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    @property
    def render_mode(self) -> str:  # type: ignore[override]
        """``"human"``."""
        return "human"

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and show it."""
        result = self.env.reset(**options)
        self.render()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and show it."""
        result = self.env.step(action)
        self.render()
        return result

    def render(self) -> None:
        """Show the ``(H, W, 3)`` uint8 image of the present state, a small one enlarged.

        If the user closes the window, the next image opens it again.
        """
        try:
            import tkinter
        except ImportError as error:
            raise MissingDisplayError(
                'Found no tkinter in this Python; render_mode="human" opens its window with it. '
                'Install it (Debian and Ubuntu: apt install python3-tk) or use "rgb_array".'
            ) from error
        frame = np.asarray(self.env.render(), np.uint8)
        zoom = max(1, _SMALLEST_SIDE // min(frame.shape[:2]))
        large = frame.repeat(zoom, axis=0).repeat(zoom, axis=1)
        data = f"P6 {large.shape[1]} {large.shape[0]} 255 ".encode("ascii") + large.tobytes()
        try:
            if self._shown is None:
                root = tkinter.Tk()
                root.title("PandaHover")
                label = tkinter.Label(root)
                label.pack()
            else:
                root, label, _ = self._shown
            image = tkinter.PhotoImage(master=root, data=data, format="PPM")
            label.configure(image=image)
            self._shown = root, label, image
            root.update()
        except tkinter.TclError as error:
            self._shown = None
            if "destroyed" not in str(error) and "invalid command name" not in str(error):
                raise MissingDisplayError(
                    f"Found a display that opens no window ({error}); expected one that works. "
                    'Check DISPLAY, or use render_mode="rgb_array".'
                ) from error

    def close(self) -> None:
        """Close the window and the environment."""
        shown, self._shown = self._shown, None
        if shown is not None:
            import tkinter

            with contextlib.suppress(tkinter.TclError):  # The user closed it already.
                shown[0].destroy()
        super().close()
