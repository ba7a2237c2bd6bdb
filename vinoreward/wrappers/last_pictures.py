"""Environments that write to an observation which they have given away.

Gymnasium's SAME_STEP mode and SB3's vector environments reset an environment before they pass on
the observation that its episode ended with. An environment that returns one array again and again
has overwritten it by then. In this process the array is copied in time. In another process, and in
an environment that is vectorised by itself, the fault can only be detected.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.wrappers.sources import PictureSource

ENDS = 8
"""So many episodes in a row have to end with the next one's first picture."""


class OwnLast(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Return the last observation of an episode in memory that no reset writes to.

    Args:
        env: the environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; copy the observation where the episode ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def own_last(envs: list[gym.Env[Any, Any]]) -> None:
    """Put :class:`OwnLast` around each of a vector environment's environments, in place, once."""
    envs[:] = [env if isinstance(env, OwnLast) else OwnLast(env) for env in envs]


class LastPictures:
    """Detects last pictures that a reset has overwritten, where they cannot be copied in time.

    Proof is a last observation that shares memory with the next episode's first one. Pictures from
    another process share no memory. There :data:`ENDS` episodes in a row must end with exactly the
    next episode's first picture, after a step that showed another picture. One episode that ends
    otherwise clears the environment for good.

    Args:
        remedy: what else to do, the end of a sentence.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._before: NDArray[Any] | None = None
        self._suspicious = 0
        self._cleared = False

    def check(self, source: PictureSource, last: Mapping[int, Any], observations: Any) -> None:
        """Look at one step.

        Args:
            source: where pictures are in observations.
            last: environment to its last observation, of those that were reset in this step.
            observations: of all environments; there the first one of the next episode.

        Raises:
            ConfigError: the last pictures are those of the next episodes.
        """
        pictures = source.stored(observations)
        if pictures is None:
            return
        for i, observation in last.items():
            end, first = source.stored(observation), pictures[i]
            if end is None:
                continue
            if np.may_share_memory(end, first) and np.shares_memory(end, first):
                raise self._refusal("is in the memory of the first one of the next episode")
            if self._cleared:
                continue
            if not np.array_equal(end, first):
                self._cleared, self._before = True, None
            elif self._before is not None and not np.array_equal(self._before[i], end):
                self._suspicious += 1
        if self._suspicious >= ENDS and not self._cleared:
            raise self._refusal(
                f"was the first one of the next episode in {self._suspicious} of the last "
                f"{self._suspicious} episodes in which anything moved"
            )
        if not self._cleared:
            self._before = np.array(pictures)

    def _refusal(self, found: str) -> ConfigError:
        return ConfigError(
            f"the last picture of an episode {found}: the environment writes to an array that it "
            "has returned before, so that the end of an episode is scored by another episode's "
            "picture. Expected a new array from every reset; return a copy from the environment "
            f"(gymnasium.wrappers.TransformObservation with numpy.copy), or {self._remedy}."
        )


def keep_last(env: VectorEnv[Any, Any, Any]) -> LastPictures | None:
    """See that last pictures are not overwritten, for the steps of a Gymnasium vector environment.

    Args:
        env: it; a ``SyncVectorEnv``'s environments are wrapped in :class:`OwnLast`.

    Returns:
        What has to look at every step, or None.
    """
    if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        return None
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        own_last(base.envs)
        return None
    return LastPictures("make it with autoreset_mode=AutoresetMode.NEXT_STEP")
