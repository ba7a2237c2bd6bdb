"""Resets of a batch of environments in the step that ends an episode, on a device too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from vinoreward.arrays import Array, is_tensor
from vinoreward.errors import ConfigError
from vinoreward.wrappers.infos import masked, merged


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
        going, ended = merged(infos, begun, over), masked(infos, over)
        going.update(final_obs=final, _final_obs=over, final_info=ended, _final_info=over & True)
        return fresh, rewards, terminations, truncations, going

    def _copy(self, observations: Any, over: Array) -> Any:
        """Return final observations in memory of their own."""
        if is_tensor(observations):
            return observations.clone()
        if isinstance(observations, Mapping) and not isinstance(over, np.ndarray):
            return {key: self._copy(part, over) for key, part in observations.items()}
        last = np.full(self.num_envs, None, object)
        if isinstance(observations, np.ndarray):
            for i in np.flatnonzero(over).tolist():
                last[i] = observations[i].copy()
            return last
        for i, one in enumerate(iterate(self.observation_space, observations)):
            if over[i]:
                last[i] = np.array(one) if isinstance(one, np.ndarray) else one
        return last
