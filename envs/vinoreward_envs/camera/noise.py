"""The sensor's noise: whole numbers from a table, the same on every device."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs.randomization import normals

NOISE_STARTS: Final = 1 << 16
"""Places in the table of noise where an image may begin."""
NEXT_NOISE: Final = 7919
"""Numbers further on begins the noise of the next image."""
NOISE_UNIT, NOISE_STEPS = 32, 8
"""Noise is fixed-point: in 1/32 of a standard deviation, and deviations in 1/8 of a grey level."""
NOISE_ROUNDED: Final = NOISE_UNIT * NOISE_STEPS // 2
"""Added to a product of both before it is shifted: it is rounded, and an image's mean stays."""
NOISE_SHIFTED: Final = (NOISE_UNIT * NOISE_STEPS).bit_length() - 1
"""Bits by which it is shifted to whole grey levels."""


@functools.lru_cache(maxsize=4)
def noise_table(count: int) -> NDArray[np.int16]:
    """Return ``count`` normal numbers in parts of their deviation, at most four of it."""
    return np.rint(NOISE_UNIT * np.clip(normals(count), -4.0, 4.0)).astype(np.int16)
