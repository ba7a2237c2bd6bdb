"""A window that shows the camera's pictures (``render_mode="human"``)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import MissingDisplayError

if TYPE_CHECKING:
    import tkinter

_SMALLEST_SIDE = 480


def check_display() -> None:
    """Raise unless a window can be expected to open.

    Raises:
        MissingDisplayError: no display is named in the environment (on Linux).
    """
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        raise MissingDisplayError(
            'Found no display (neither DISPLAY nor WAYLAND_DISPLAY is set); render_mode="human" '
            'opens a window and needs one. Use render_mode="rgb_array", or "vinoreward play", '
            "which writes a GIF."
        )


class HumanView:
    """One window, opened at the first picture.

    Raises:
        MissingDisplayError: no display, or no tkinter to open a window with.
    """

    def __init__(self, title: str) -> None:
        check_display()
        self._title = title
        self._root: tkinter.Tk | None = None
        self._label: tkinter.Label | None = None
        self._image: tkinter.PhotoImage | None = None

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Show an ``(H, W, 3)`` uint8 picture, enlarged by a whole number if it is small.

        Closing the window ends nothing: the next picture opens it again.
        """
        try:
            import tkinter
        except ImportError as error:
            raise MissingDisplayError(
                'Found no tkinter in this Python; render_mode="human" opens its window with it. '
                'Install it (Debian and Ubuntu: apt install python3-tk) or use "rgb_array".'
            ) from error
        zoom = max(1, _SMALLEST_SIDE // min(frame.shape[:2]))
        large = frame.repeat(zoom, axis=0).repeat(zoom, axis=1)
        header = f"P6 {large.shape[1]} {large.shape[0]} 255 ".encode("ascii")
        try:
            if self._root is None or self._label is None:
                self._root = tkinter.Tk()
                self._root.title(self._title)
                self._label = tkinter.Label(self._root)
                self._label.pack()
            # Tk shows an image only as long as somebody holds it.
            self._image = tkinter.PhotoImage(
                master=self._root, data=header + large.tobytes(), format="PPM"
            )
            self._label.configure(image=self._image)
            self._root.update()
        except tkinter.TclError as error:
            self._root = self._label = self._image = None
            if "destroyed" in str(error) or "invalid command name" in str(error):
                return
            raise MissingDisplayError(
                f"Found a display that opens no window ({error}); expected one that works. Check "
                'DISPLAY, or use render_mode="rgb_array".'
            ) from error

    def close(self) -> None:
        """Close the window. Calling it again does nothing."""
        root, self._root, self._label, self._image = self._root, None, None, None
        if root is not None:
            import tkinter

            try:
                root.destroy()
            except tkinter.TclError:
                return  # The person closed it already.
