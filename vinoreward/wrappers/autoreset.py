"""Resets of a batch of environments in the step that ends an episode, on a device too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from vinoreward.arrays import Array, Arrays, is_tensor
from vinoreward.errors import ConfigError


class VectorAutoreset(VectorWrapper[Any, Any, Any, Any, Any]):
    """Starts an environment's next episode in the step that ends one (SAME_STEP).

    The observation is the next episode's first; ``infos["final_obs"]`` and ``infos["final_info"]``
    hold what the episode ended with, where ``infos["_final_obs"]`` is True: Gymnasium's form, or
    tensors where observations are tensors. On a device all environments are given the reset mask
    in each step, so that the host need not wait to know whether an episode ended.

    Put it around :class:`~vinoreward.VectorLearnedReward`, whose claims end episodes, where the
    environment resets none itself.

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

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all environments; reset those whose episode ended."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        over = terminations | truncations
        if isinstance(over, np.ndarray) and not over.any():
            return observations, rewards, terminations, truncations, infos
        final = self._copy(observations, over)
        fresh, begun = self.env.reset(options={"reset_mask": over})
        going, ended = _merged(infos, begun, over), _masked(infos, over)
        going.update(final_obs=final, _final_obs=over, final_info=ended, _final_info=over & True)
        return fresh, rewards, terminations, truncations, going

    def _copy(self, observations: Any, over: Array) -> Any:
        """Return final observations in memory of their own."""
        if is_tensor(observations):
            return observations.clone()
        if isinstance(observations, Mapping) and not isinstance(over, np.ndarray):
            return {key: self._copy(part, over) for key, part in observations.items()}
        last = np.full(self.num_envs, None, object)
        for i, one in enumerate(iterate(self.observation_space, observations)):
            if over[i]:
                last[i] = np.array(one) if isinstance(one, np.ndarray) else one
        return last


def _masked(infos: Mapping[str, Any], mask: Array) -> dict[str, Any]:
    """Return infos that are set where ``mask`` is True, in new memory."""
    result: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        own = infos.get(f"_{key}", True) & mask
        if isinstance(values, Mapping):
            result[key] = _masked(values, mask)
        else:
            result[key] = _where(own, values, None)
        result[f"_{key}"] = own
    return result


def _merged(infos: Mapping[str, Any], begun: Mapping[str, Any], over: Array) -> dict[str, Any]:
    """Return infos of episodes that go on, and those of a reset where ``over``."""
    result, fresh = _masked(infos, ~over), _masked(begun, over)
    for key, values in fresh.items():
        if key.startswith("_") and key[1:] in fresh:
            continue
        mask = fresh[f"_{key}"]
        if key not in result:
            result[key], result[f"_{key}"] = values, mask
        elif isinstance(values, Mapping):
            result[key] = _merged(infos[key], begun[key], over)
        else:
            result[key] = _where(mask, values, result[key])
        result[f"_{key}"] = result[f"_{key}"] | mask
    return result


def _where(mask: Array, values: Array, otherwise: Array | None) -> Array:
    """Return values where ``mask``, ``(N,)``, is True, of ``otherwise`` or zeros elsewhere."""
    values = values if is_tensor(values) else np.asarray(values)
    shaped = mask.reshape(-1, *[1] * (values.ndim - 1))
    if otherwise is None and values.dtype != np.object_:
        otherwise = values * 0 if is_tensor(values) else values.dtype.type(0)
    return Arrays.like(values).xp.where(shaped, values, otherwise)
