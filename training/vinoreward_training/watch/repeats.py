"""A frozen camera where no state is known: one with noise that shows the same image for long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vinoreward.rewards.frozen import FROZEN, ROWS, Floats, FrozenCheck, Images, Mask

SECONDS = 1.0
"""For which a camera with noise must have shown the same image, bit for bit, to be frozen."""
NOISE = 0.5
"""Share of the pixels that a camera's noise changes from image to image, at least."""


class RepeatCheck(FrozenCheck):
    """The frozen-camera check of one camera; the state is the time in seconds.

    Images without noise, as of simulators and compressed videos, are the same wherever nothing
    moves: these are counted only.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.repeated = 0
        """Images that were the same as the one before."""
        self.shown_for = 0.0
        """Seconds for which the last image has been shown."""
        self._image = np.zeros((0, 0, 3), np.uint8)
        self._since = self._noise = 0.0

    @property
    def frozen(self) -> bool:
        """Whether the camera has noise, and has shown the same image for ``SECONDS``."""
        return self._noise >= NOISE and self.shown_for >= SECONDS

    def ood_score(
        self, mask: Mask, images: Images, states: Floats, claims: Mask
    ) -> NDArray[np.float32]:
        """Return ``FROZEN`` if the camera of ``images`` (1, H, W, 3) is, else 0: ``(1,)``."""
        image, now = images[0], float(states[0, 0])
        every = slice(None, None, max(1, len(image) // ROWS))
        if np.array_equal(image, self._image):
            self.repeated += 1
            self.shown_for = now - self._since
        else:
            if image.shape == self._image.shape:
                changed = (image[every] != self._image[every]).any(axis=-1).mean()
                self._noise += (float(changed) - self._noise) / ROWS
            self._image, self._since, self.shown_for = image.copy(), now, 0.0
        return np.full(1, FROZEN * self.frozen, np.float32)
