"""What hover environments are given, checked: actions, places, seeds, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays, is_tensor, to_numpy
from vinoreward.errors import ConfigError, InputError
from vinoreward_envs import constants as c
from vinoreward_envs.arrays import placed
from vinoreward_envs.camera.spec import check_choice
from vinoreward_envs.scenes import ObjectPosition


def checked_count(name: str, value: object) -> int:
    """Return a whole number of at least 1, or raise ConfigError."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise ConfigError(f"Found {name}={value!r}; expected a whole number of at least 1. Pass one.")


def checked_options(options: Mapping[str, Any] | None, known: set[str]) -> dict[str, Any]:
    """Return a copy of a reset's options, or raise ConfigError for others than the known ones."""
    given = dict(options or {})
    if not given.keys() <= known:
        raise ConfigError(
            f"Found reset options {sorted(given.keys() - known)}; expected only "
            f"{' and '.join(map(repr, sorted(known)))}. Remove them."
        )
    return given


def checked_actions(actions: Array, count: int, arrays: Arrays) -> tuple[Array, Array]:
    """Return ``(N, 2)`` float64 moves within their bounds, and where all numbers are finite.

    The moves elsewhere are 0. InputError for another shape, or no numbers.
    """
    xp = arrays.xp
    try:
        if not arrays.on_host:
            moves = xp.as_tensor(actions, dtype=xp.float64, device=arrays.device).detach()
        else:
            # NumPy has no bfloat16.
            own = actions.double() if is_tensor(actions) else actions
            moves = np.asarray(to_numpy(own), np.float64)
        shape = tuple(moves.shape)
    except (TypeError, ValueError, RuntimeError):
        shape = ()
    if shape != (count, 2):
        raise InputError(
            f"Found actions {_shown(actions)}; expected numbers of shape ({count}, 2), a move (dx, "
            f"dy) in metres within {c.MAX_MOVE} for each environment. Check the policy that made "
            "them."
        )
    finite = xp.isfinite(moves).all(1)
    return xp.where(finite[:, None], xp.clip(moves, -c.MAX_MOVE, c.MAX_MOVE), 0.0), finite


def checked_mask(mask: Any, count: int, arrays: Arrays) -> Array:
    """Return a reset mask as an own ``(N,)`` bool array; all True for None.

    A tensor may be False everywhere: to know it, the host would have to wait for a device.
    """
    if mask is None:
        return placed(np.ones(count, np.bool_), arrays)
    if is_tensor(mask) and not arrays.on_host:
        own = mask.detach().to(arrays.device, copy=True)
        fits = own.shape == (count,) and own.dtype == arrays.xp.bool
    else:
        own = np.array(to_numpy(mask))
        fits = own.shape == (count,) and own.dtype == np.bool_ and bool(own.any())
        own = placed(own, arrays) if fits else own
    if not fits:
        raise InputError(
            f'Found the reset option "reset_mask" {_shown(own)}; expected bool of shape ({count},) '
            "with at least one True, where to reset. Pass terminations | truncations, or leave it "
            "out to reset all."
        )
    return own


def checked_objects(
    value: Any, count: int = 1, what: str = 'reset option "object_position"'
) -> NDArray[np.float64]:
    """Return places of objects as ``(N, 2)``."""
    try:
        own = np.asarray(to_numpy(value), np.float64)
    except (TypeError, ValueError):
        own = np.empty(0)
    # NaN compares false, so this refuses it as well.
    if own.shape in ((2,), (count, 2)) and (
        (own >= c.WORKSPACE_LOW).all() and (own <= c.WORKSPACE_HIGH).all()
    ):
        return np.broadcast_to(own, (count, 2))
    raise InputError(
        f"Found {_shown(value)} as {what}; expected x, y in metres from {c.WORKSPACE_LOW} to "
        f"{c.WORKSPACE_HIGH}{f', or ({count}, 2) of them' if count > 1 else ''}, where the gripper "
        "can hover. Pass such places."
    )


def checked_object_position(value: ObjectPosition) -> ObjectPosition:
    """Return ``value`` if the object can be there, else raise ``ConfigError`` or ``InputError``."""
    if isinstance(value, str):
        check_choice("object_position", value, ("fixed", "random"))
        return value
    (place,) = checked_objects(value, what="object_position").tolist()
    return (place[0], place[1])


def checked_seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return one seed per environment; a single number gives ``seed + i``."""
    seeds: list[Any] = [None] * count
    if isinstance(seed, (int, np.integer)):
        seeds = [int(seed) + i for i in range(count)]
    elif seed is not None:
        seeds = list(seed)
    right = [
        each is None
        or (isinstance(each, (int, np.integer)) and not isinstance(each, bool) and each >= 0)
        for each in seeds
    ]
    if not all(right) or len(seeds) != count:
        wrong = "" if all(right) else f", of them {seeds[right.index(False)]!r}"
        raise InputError(
            f"Found {len(seeds)} seeds{wrong}; expected a whole number of at least 0, or {count} "
            "of them. Pass one number for all."
        )
    return [None if each is None else int(each) for each in seeds]


def _shown(value: Any) -> str:
    """Return what was found, in a few words."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{value!r:.80}" if shape is None else f"of shape {tuple(shape)} and type {dtype}"
