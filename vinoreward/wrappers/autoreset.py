"""Resets of environments in a batch in the step that ends their episode, and infos of such steps.

``infos[key]`` is valid where its mask ``infos["_" + key]`` is True. Both are NumPy arrays or torch
tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from vinoreward.arrays import Array, Arrays, is_tensor
from vinoreward.errors import ConfigError

Infos = dict[str, Any]


class VectorAutoreset(VectorWrapper[Any, Any, Any, Any, Any]):
    """Starts an environment's next episode in the step that ends one (SAME_STEP).

    ``infos["final_obs"]`` and ``infos["final_info"]`` hold what the episode ended with: Gymnasium's
    form, or tensors where observations are tensors. On a device all environments are given the
    reset mask in each step, so that the host need not wait to know whether an episode ended.

    Put it around a :class:`~vinoreward.VectorLearnedReward`, whose claims end episodes.

    Args:
        env: a vector environment in DISABLED mode, which takes the reset option ``reset_mask``.

    Raises:
        ConfigError: another autoreset mode.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.DISABLED:
            raise ConfigError(
                f"{type(env.unwrapped).__name__} has the autoreset mode "
                f"{getattr(mode, 'value', mode)}. Expected AutoresetMode.DISABLED, and resets with "
                "options={'reset_mask': mask}; leave VectorAutoreset out."
            )
        super().__init__(env)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Infos]:
        """Step all environments; reset those whose episode ended."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        over = terminations | truncations
        if is_tensor(over) or over.any():
            observations, infos = reset_ended(self.env, over, observations, infos)
        return observations, rewards, terminations, truncations, infos


def reset_ended(
    env: VectorEnv[Any, Any, Any], over: Array, observations: Any, infos: Infos
) -> tuple[Any, Infos]:
    """Reset environments where ``over`` is True; return all observations, and infos.

    Their ``final_obs`` and ``final_info`` hold what ``observations`` and ``infos`` were there.
    """
    final = _final_obs(env.observation_space, observations, over)
    ended = merged({}, infos, over)
    fresh, begun = env.reset(options={"reset_mask": over & True})
    going = merged(infos, begun, over)
    if "final_obs" in going:  # of other environments
        put(going, "final_obs", final, over)
        put(going, "final_info", ended, over)
    else:
        going.update(final_obs=final, _final_obs=over & True)
        going.update(final_info=ended, _final_info=over & True)
    return fresh, going


def _final_obs(space: gym.Space[Any], observations: Any, over: Array) -> Any:
    """Return final observations in memory of their own: tensors, or an array of objects."""
    if is_tensor(observations):
        return observations.clone()
    if isinstance(observations, Mapping) and is_tensor(over):
        return {key: _final_obs(space, part, over) for key, part in observations.items()}
    rows: Any = observations
    if not isinstance(observations, np.ndarray):
        rows = list(iterate(space, observations))
    last = np.full(len(over), None, object)
    for i in np.flatnonzero(over).tolist():
        last[i] = copy.deepcopy(rows[i])
    return last


def mask_of(infos: Mapping[str, Any], key: str, default: Array) -> Array:
    """Return where a key is set, in new memory; ``default`` where infos have no mask of it."""
    return infos.get(f"_{key}", default) & True


def put(infos: Infos, key: str, values: Any, mask: Array) -> None:
    """Write values of a key where ``mask`` is True; other rows keep theirs. Never in place."""
    before = infos.get(key)
    own = mask & True if before is None else mask_of(infos, key, mask | True) | mask
    if isinstance(values, Mapping):
        infos[key] = merged(before or {}, values, mask)
    else:
        infos[key] = _where(mask, values, before)
    infos[f"_{key}"] = own


def merged(infos: Mapping[str, Any], others: Mapping[str, Any], mask: Array) -> Infos:
    """Return infos in new memory: of ``others`` where ``mask`` is True, of ``infos`` elsewhere."""
    result: Infos = {}
    for given, where in ((infos, ~mask), (others, mask)):
        for key in _keys(given):
            put(result, key, given[key], mask_of(given, key, True) & where)
    return result


def keep_original(infos: Infos, key: str, default: Array) -> bool:
    """Move a key and its mask to ``original_<key>``, in place; return whether it was there."""
    if key not in infos:
        return False
    mask = mask_of(infos, key, default)
    infos[f"original_{key}"], infos[f"_original_{key}"] = infos.pop(key), mask
    infos.pop(f"_{key}", None)
    return True


def converted(infos: Mapping[str, Any], convert: Callable[[Array], Array]) -> Infos:
    """Return infos whose arrays of numbers are converted, those of observations as they are."""
    result = dict(infos)
    for key, values in infos.items():
        if key == "final_obs":
            continue
        if isinstance(values, Mapping):
            result[key] = converted(values, convert)
        elif is_tensor(values) or (isinstance(values, np.ndarray) and values.dtype.kind in "biuf"):
            result[key] = convert(values)
    return result


def invalid_actions(infos: Mapping[str, Any], nowhere: Array) -> Array:
    """Return where an action was invalid, so that no image shows what it led to."""
    final = infos.get("final_info", {})
    return infos.get("invalid_action", nowhere) | final.get("invalid_action", False)


def _keys(infos: Mapping[str, Any]) -> list[str]:
    return [key for key in infos if not (key.startswith("_") and key[1:] in infos)]


def _where(mask: Array, values: Array, otherwise: Array | None) -> Array:
    """Return values where ``mask``, ``(N,)``, is True, of ``otherwise`` or zeros elsewhere."""
    values = values if is_tensor(values) else np.asarray(values)
    shaped = mask.reshape(-1, *[1] * (values.ndim - 1))
    if otherwise is None and values.dtype != np.object_:
        otherwise = Arrays.like(values).xp.zeros_like(values)
    return Arrays.like(values).xp.where(shaped, values, otherwise)
