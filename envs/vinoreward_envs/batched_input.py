"""What a batch of hover environments is given, checked: actions, seeds, masks, memory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.machine import free_memory
from vinoreward_envs import constants as c
from vinoreward_envs.arrays import CPU, Array, Arrays
from vinoreward_envs.batched_pictures import PIECE
from vinoreward_envs.camera.baked import scene_mesh
from vinoreward_envs.camera.spec import CameraSpec

STATE_BYTES: Final = 1024
"""Of one environment, without pictures: numbers, joints, and what a step computes with."""
CAMERA_BYTES: Final = 16 << 20
"""Of a camera's buffers, beside its pictures."""
PICTURES_AT_ONCE: Final = 8
"""Times the pictures of one piece, with what the guard computes of them."""
SCENE_BYTES: Final = 8 << 10
"""Of one scene of a piece that is drawn on a GPU, beside its pixels and corners: poses."""
CORNER_BYTES: Final = 12
"""Of one corner of its triangles."""
PIXEL_BYTES: Final = 192
"""Of one of its pixels, with what classifier and guard compute of it."""
LOOK_BYTES: Final = 2048
"""Of what one environment's episode drew, beside its background."""
DEVICE_LOOK_BYTES: Final = 8192
"""The same on a device, which also keeps how the triangles of the background are seen."""
MEMORY_SHARE: Final = 0.9
"""Largest share of the free memory."""


def checked_count(name: str, value: object) -> int:
    """Return a whole number of at least 1, or raise ConfigError."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or int(value) < 1:  # type: ignore[call-overload]
        raise ConfigError(
            f"Found {name}={value!r}; expected a whole number of at least 1. Pass one."
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def refuse_scalar_only(
    *, motion: str, camera: str, fidelity: str | None, render_mode: str | None
) -> None:
    """Raise ConfigError for what only the scalar environment can do."""
    asked = {"motion": motion, "camera": camera, "fidelity": fidelity, "render_mode": render_mode}
    only = {"motion": "dynamics", "camera": "tiny", "fidelity": "article", "render_mode": "human"}
    batched = {"motion": "kinematic", "camera": "fast", "fidelity": None}
    for name, value in asked.items():
        if value == only[name] or value != batched.get(name, value):
            raise ConfigError(
                f"Found {name}={value!r}; environments in one batch have no such thing. Leave it "
                'out, or make single ones: vectorization_mode="sync" or "async".'
            )


def checked_actions(actions: Array, count: int, arrays: Arrays) -> tuple[Array, Array]:
    """Return ``(N, 2)`` float64 moves within their bounds, and where all numbers are finite.

    The moves elsewhere are 0. InputError for another shape, or no numbers.
    """
    xp = arrays.xp
    try:
        if arrays.kind == "torch":
            moves = xp.as_tensor(actions, dtype=xp.float64, device=arrays.device).detach()
        else:
            # A tensor that a learner differentiates, or that is on a device, is no array yet.
            own = actions.detach().cpu().double() if hasattr(actions, "detach") else actions
            moves = np.asarray(own, np.float64)
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


def checked_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    """Return a reset mask as an own ``(N,)`` bool array; all True for None."""
    if mask is None:
        return np.ones(count, np.bool_)
    own = np.array(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    if own.shape != (count,) or own.dtype != np.bool_ or not own.any():
        raise InputError(
            f'Found the reset option "reset_mask" {_shown(own)}; expected bool of shape ({count},) '
            "with at least one True, where to reset. Pass terminations | truncations, or leave it "
            "out to reset all."
        )
    return own


def checked_objects(value: Any, count: int) -> NDArray[np.float64] | None:
    """Return places of objects as ``(N, 2)``; None for None."""
    if value is None:
        return None
    try:
        own = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
    except (TypeError, ValueError):
        own = np.empty(0)
    # NaN compares false, so this refuses it as well.
    if own.shape in ((2,), (count, 2)) and (
        (own >= c.WORKSPACE_LOW).all() and (own <= c.WORKSPACE_HIGH).all()
    ):
        return np.broadcast_to(own, (count, 2))
    raise InputError(
        f'Found the reset option "object_position" {_shown(value)}; expected x, y in metres from '
        f"{c.WORKSPACE_LOW} to {c.WORKSPACE_HIGH}, or ({count}, 2) of them. Pass such places."
    )


def checked_seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return one seed per environment: ``seed + i`` of a number."""
    seeds: Sequence[Any]
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        seeds = range(int(seed), int(seed) + count)
    else:
        seeds = list(seed)
    wrong = [
        each
        for each in (seeds[:1] if isinstance(seeds, range) else seeds)
        if each is not None
        and (isinstance(each, bool) or not isinstance(each, (int, np.integer)) or each < 0)
    ]
    if wrong or len(seeds) != count:
        raise InputError(
            f"Found {len(seeds)} seeds{f', of them {wrong[0]!r}' if wrong else ''}; expected a "
            f"whole number of at least 0, or {count} of them. Pass one number for all."
        )
    return [None if each is None else int(each) for each in seeds]


def memory_needed(
    num_envs: int,
    spec: CameraSpec,
    *,
    threads: int,
    pixels: bool,
    rendered: bool,
    varied: bool = False,
    at_once: int = 0,
) -> dict[str, int]:
    """Return the bytes that so many environments need: ``"state"``, ``"pictures"``, ``"drawing"``,
    ``"looks"``.

    With ``pixels`` a step in which all episodes end holds the pictures that it returns, those that
    the episodes ended with and start with, and the ones before that the caller still has; with
    ``rendered`` those of ``render()``. What drawing and judging need
    depends on the ``threads`` alone. ``varied`` environments keep what their episodes drew and, if
    anything is drawn, a background each. Environments that stay on a device draw ``at_once`` of
    their scenes at once. Libraries and networks are not counted.
    """
    picture = spec.height * spec.width * 3
    background = picture + spec.height * spec.width * 4 if threads else 0
    sets = (4 if pixels else 0) + (1 if rendered else 0)
    drawing = threads * (CAMERA_BYTES + PIECE * picture * PICTURES_AT_ONCE)
    if at_once:
        corners = CORNER_BYTES * len(scene_mesh(spec.mesh).positions)
        pixels_of_one = PIXEL_BYTES * spec.height * spec.width
        drawing = at_once * (SCENE_BYTES + corners + pixels_of_one)
    look = DEVICE_LOOK_BYTES if at_once else LOOK_BYTES
    return {
        "state": num_envs * STATE_BYTES,
        "pictures": num_envs * picture * sets,
        "drawing": drawing,
        "looks": num_envs * (look + background) if varied else 0,
    }


def check_memory(
    num_envs: int, needed: Mapping[str, int], arrays: Arrays, *, on_device: bool = False
) -> None:
    """Raise ConfigError if the environments need more memory than is free.

    Those that stay ``on_device`` need it there alone.
    """
    for device, free in free_bytes(arrays).items():
        total = sum(needed.values())
        if on_device and device != arrays.device:
            continue
        if free is None or total <= MEMORY_SHARE * free:
            continue
        parts = ", ".join(f"{value / 1e9:.2f} GB of {name}" for name, value in needed.items())
        raise ConfigError(
            f"{num_envs} environments need {total / 1e9:.2f} GB ({parts}), and {free / 1e9:.2f} GB "
            f"are free on {device}. Expected at most {MEMORY_SHARE:.0%} of that; make fewer "
            "(num_envs), or with pictures smaller ones (image_size)."
        )


def free_bytes(arrays: Arrays) -> dict[str, int | None]:
    """Return the free memory of the host and of the device in use; None where it is not known."""
    free: dict[str, int | None] = {"the host": free_memory()}
    if arrays.device != CPU and arrays.kind == "torch":
        torch = importlib.import_module("torch")
        free[arrays.device] = int(torch.cuda.mem_get_info(arrays.device)[0])
    return free


def _shown(value: Any) -> str:
    """Return what was found, in a few words."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{value!r:.80}" if shape is None else f"of shape {tuple(shape)} and type {dtype}"
