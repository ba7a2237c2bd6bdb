"""The layout of pictures: what others give, brought into the one that bundles take."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError

Layout = Literal["HWC", "CHW"]


def layout_of(shape: tuple[int, ...], where: str) -> Layout:
    """Return whether a picture of ``shape`` has its three channels last or first.

    Raises:
        ConfigError: it is no colour picture, or both readings are possible.
    """
    if len(shape) != 3 or 3 not in (shape[0], shape[2]):
        raise ConfigError(
            f"{where} has shape {shape}. Expected a colour picture, (height, width, 3) or "
            "(3, height, width); choose another image_source (stacked or grey frames cannot be "
            "scored), or give a callable that makes the picture."
        )
    if shape[0] == shape[2]:
        raise ConfigError(
            f"{where} has shape {shape}, where the channels may be first or last. Expected an "
            "unambiguous shape; give a callable as image_source that returns (height, width, 3)."
        )
    return "HWC" if shape[2] == 3 else "CHW"


def to_hwc(batch: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
    """Return an ``(N, ...)`` batch as contiguous ``(N, H, W, 3)``, copied only where needed."""
    return np.ascontiguousarray(batch if layout == "HWC" else batch.transpose(0, 2, 3, 1))
