"""One sub-environment's part of what a Gymnasium vector environment returns.

``infos[key]`` holds one value per sub-environment and ``infos["_" + key]`` says whose are set.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate


def row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one sub-environment as plain values; arrays are copied."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[index]:
            continue
        if isinstance(values, dict):
            found[key] = row(values, index)
            continue
        value = values[index]
        if isinstance(value, np.ndarray):
            value = value.copy()
        elif isinstance(value, np.generic):
            value = value.item()
        found[key] = value
    return found


def withdraw(infos: dict[str, Any], index: int) -> None:
    """Take one sub-environment's values out of ``infos``; the others keep theirs."""
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[index]:
            continue
        mask[index] = False
        if isinstance(values, dict):
            withdraw(values, index)
        else:
            values[index] = None if values.dtype == object else np.zeros((), values.dtype)


def put(env: VectorEnv[Any, Any, Any], infos: dict[str, Any], info: dict[str, Any], i: int) -> None:
    """Add one sub-environment's info, in place, in Gymnasium's own form."""
    infos.update(env._add_info(infos, info, i))


def joined(space: gym.Space[Any], rows: list[Any]) -> Any:
    """Return the batch of single observations, in new memory."""
    empty: Any = create_empty_array(space, n=len(rows))
    return concatenate(space, rows, empty)


def copied(space: gym.Space[Any], observation: Any) -> Any:
    """Return a copy of one observation that no later step writes to."""
    return next(iter(iterate(batch_space(space, 1), joined(space, [observation]))))
