"""Checks of what a user hands to PandaHover."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward_envs import constants as c

ObjectPosition = Literal["fixed", "random"] | tuple[float, float]


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ``ConfigError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(
            f"Found {name}={value!r}; expected one of {', '.join(map(repr, choices))}. "
            "Pass one of them."
        )


def checked_object_position(value: ObjectPosition) -> ObjectPosition:
    """Return ``value`` if the object can be there, else raise ``ConfigError`` or ``InputError``."""
    if isinstance(value, str):
        if value not in ("fixed", "random"):
            raise ConfigError(
                f'Found object_position={value!r}; expected "fixed", "random" or (x, y) in '
                "metres. Pass one of them."
            )
        return value
    return place(value, "object_position")


def place(value: Any, what: str) -> tuple[float, float]:
    """Return x, y in metres if they are a place in the workspace, else raise ``InputError``."""
    try:
        xy = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        xy = np.empty(0)
    # NaN compares false, so this refuses it as well.
    if xy.shape == (2,) and (xy >= c.WORKSPACE_LOW).all() and (xy <= c.WORKSPACE_HIGH).all():
        return (float(xy[0]), float(xy[1]))
    raise InputError(
        f"Found {value!r} as {what}; expected x, y in metres from {c.WORKSPACE_LOW} to "
        f"{c.WORKSPACE_HIGH}, where the gripper can hover. Pass such a pair."
    )


def checked_action(action: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the action as ``(2,)`` float64 within its bounds, or raise ``InputError``."""
    try:
        move = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError):
        move = np.empty(0)
    if move.shape != (2,) or not np.isfinite(move).all():
        raise InputError(
            f"Found the action {action!r}; expected two finite numbers, (dx, dy) in metres within "
            f"{c.MAX_MOVE}. Check the policy that made it."
        )
    return np.clip(move, -c.MAX_MOVE, c.MAX_MOVE)
