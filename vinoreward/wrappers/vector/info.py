"""One sub-environment's part of what a Gymnasium vector environment returns.

``infos[key]`` holds one value per sub-environment and ``infos["_" + key]`` says whose are set.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from vinoreward.errors import InputError


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


def mask_of(infos: dict[str, Any], key: str, default: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whose values of a key are set; ``default`` where, as natively, there is no mask."""
    mask = infos.get(f"_{key}")
    return default.copy() if mask is None else np.array(mask, np.bool_)


def keep_original(infos: dict[str, Any], key: str, num_envs: int) -> bool:
    """Move a key and its mask to ``original_<key>``, in place; return whether it was there."""
    if key not in infos:
        return False
    mask = mask_of(infos, key, np.ones(num_envs, np.bool_))
    infos[f"original_{key}"], infos[f"_original_{key}"] = infos.pop(key), mask
    infos.pop(f"_{key}", None)
    return True


def finals(
    env: VectorEnv[Any, Any, Any], ended: NDArray[np.bool_], infos: dict[str, Any]
) -> dict[int, Any]:
    """Return the last observation of each episode that ended with this SAME_STEP step.

    Raises:
        InputError: it is not there.
    """
    chosen = np.flatnonzero(ended).tolist()
    found: Any = infos.get("final_obs")
    if isinstance(found, (dict, tuple)):  # batched, as a native vector environment may give it
        found = list(iterate(env.observation_space, found))
    missing = [i for i in chosen if found is None or found[i] is None]
    if missing:
        raise InputError(
            f"{type(env.unwrapped).__name__} ended the episodes of the sub-environments {missing} "
            f"in SAME_STEP mode without infos['final_obs'], only {', '.join(infos) or 'nothing'}. "
            "Expected their last observations there, as Gymnasium's vector environments give them;"
            " without them the picture that an episode ended with is lost."
        )
    return {i: found[i] for i in chosen}
