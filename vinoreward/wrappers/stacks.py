"""Observations of several pictures: which axis is what, and taking them apart."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, PictureMismatchError
from vinoreward.rewards.pictures import Layout

_LAYOUTS: tuple[Layout, ...] = ("HWC", "CHW")


def stack_of(
    shape: tuple[int, ...], where: str, bundle: Bundle
) -> tuple[int, Layout, tuple[int, int]]:
    """Return how many colour pictures a shape holds, their layout and ``(height, width)``.

    The shapes are ``(H, W, 3)``, ``(3, H, W)``, ``(k, H, W, 3)``, ``(k, 3, H, W)``, ``(H, W, 3 k)``
    and ``(3 k, H, W)``.

    Args:
        shape: of the observation.
        where: names it in messages.
        bundle: where two readings are possible, the one whose size it takes is meant.

    Raises:
        ConfigError: channels that are not whole pictures, or more than one reading.
    """
    picture = shape[1:] if len(shape) == 4 else shape
    if len(picture) != 3:
        raise ConfigError(
            f"{where} has shape {shape}. Expected colour pictures: (height, width, 3), (3, height, "
            "width), or several of them, stacked in a first axis or in the channels; give a "
            "function as image_source that makes the picture."
        )
    found = {layout: _channels(picture, layout) for layout in _LAYOUTS}
    exact = [layout for layout in _LAYOUTS if found[layout] == 3]
    whole = [layout for layout in _LAYOUTS if found[layout] % 3 == 0 and found[layout]]
    sizes = {layout: _size(picture, layout) for layout in _LAYOUTS}
    readings = exact
    if not exact and len(shape) == 3:
        # Sides are divisible by three often enough: fewer channels than pixels, unless it fits.
        readings = [item for item in whole if found[item] <= min(sizes[item])]
        if bundle.spec.picture.resize == "none":
            readings = [item for item in whole if _takes(bundle, sizes[item])] or readings
    if len(readings) > 1:
        readings = [item for item in readings if _takes(bundle, sizes[item])] or readings
    if len(readings) > 1:
        readings = [item for item in readings if found[item] < min(sizes[item])] or readings
    if not readings:
        raise ConfigError(
            f"{where} has shape {shape}. Expected colour pictures, with 3 channels each: "
            f"{found['HWC']} in the last axis and {found['CHW']} in the "
            f"{'second' if len(shape) == 4 else 'first'} do not divide into pictures of the "
            "bundle's size; stack whole colour pictures, or give a function as image_source."
        )
    if len(readings) > 1:
        raise ConfigError(
            f"{where} has shape {shape}, where the channels may be first or last. Expected an "
            "unambiguous shape; give a function as image_source that returns (height, width, 3)."
        )
    layout = readings[0]
    count = shape[0] if len(shape) == 4 else found[layout] // 3
    return count, layout, sizes[layout]


def unstacked(
    observation: NDArray[np.uint8], count: int, layout: Layout
) -> list[NDArray[np.uint8]]:
    """Return the pictures ``(H, W, 3)`` of one observation in order, as views."""
    if observation.ndim == 4:
        parts = list(observation)
    elif count > 1:
        parts = np.split(observation, count, axis=2 if layout == "HWC" else 0)
    else:
        parts = [observation]
    return parts if layout == "HWC" else [part.transpose(1, 2, 0) for part in parts]


def _channels(picture: tuple[int, ...], layout: Literal["HWC", "CHW"]) -> int:
    return picture[2] if layout == "HWC" else picture[0]


def _size(picture: tuple[int, ...], layout: Layout) -> tuple[int, int]:
    return (picture[0], picture[1]) if layout == "HWC" else (picture[1], picture[2])


def _takes(bundle: Bundle, size: tuple[int, int]) -> bool:
    try:
        bundle.prepare(np.zeros((1, *size, 3), np.uint8))
    except PictureMismatchError:
        return False
    return True
