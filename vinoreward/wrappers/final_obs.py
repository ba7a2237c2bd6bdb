"""Final observations that no reset overwrites.

Gymnasium's SAME_STEP mode and SB3's vector environments reset an environment before they return the
final observation of its episode. An environment that returns the same array every time has
overwritten it by then. In this process the array is copied in time; in another process, or in an
environment that is vectorised by itself, the fault can only be detected.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.wrappers.sources import ImageReader
from vinoreward.wrappers.views import ViewReader

ENDS = 8
"""Episodes in a row that must end with the next one's first image before an error is raised."""


class CopyFinalObs(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Return the final observation of an episode in memory that no reset writes to."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; copy the observation where the episode ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def _equal(some: list[NDArray[Any]], others: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, some, others))


def copy_final_obs(envs: list[gym.Env[Any, Any]]) -> None:
    """Put :class:`CopyFinalObs` around each of these environments, in place, once."""
    envs[:] = [env if isinstance(env, CopyFinalObs) else CopyFinalObs(env) for env in envs]


class FinalObsAliasCheck:
    """Detects final images that a reset has overwritten, where they cannot be copied in time.

    Proof is a final observation that shares memory with the next episode's first one. Images from
    another process share none: there :data:`ENDS` episodes in a row must end with exactly the next
    episode's first image, after a step that showed another one. An episode that ends otherwise
    clears the environment for good. ``remedy`` ends the sentence of the error.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._before: list[NDArray[Any]] = []
        self._suspicious = 0
        self._cleared = False

    def check(
        self, source: ImageReader | ViewReader, last: Mapping[int, Any], observations: Any
    ) -> None:
        """Raise ConfigError if a step's final images are those of the next episodes.

        ``last`` has final observations by environment, ``observations`` all first ones.
        """
        images = source.stored(observations)
        for i, observation in last.items() if images else ():
            # Of each camera, if there are several.
            ends, firsts = source.stored(observation), [part[i] for part in images]
            pairs = list(zip(ends, firsts, strict=False))
            if not pairs:
                continue
            if any(np.may_share_memory(*pair) and np.shares_memory(*pair) for pair in pairs):
                raise self._refusal("is in the memory of the first one of the next episode")
            if self._cleared:
                continue
            if not _equal(ends, firsts):
                self._cleared, self._before = True, []
            elif self._before and not _equal([part[i] for part in self._before], ends):
                self._suspicious += 1
        if self._suspicious >= ENDS and not self._cleared:
            raise self._refusal(
                f"was the first one of the next episode in {self._suspicious} of the last "
                f"{self._suspicious} episodes in which anything moved"
            )
        if not self._cleared:
            self._before = [np.array(part) for part in images]

    def _refusal(self, evidence: str) -> ConfigError:
        return ConfigError(
            f"the final image of an episode {evidence}: the environment writes to an array that "
            "it has returned before, so that the end of an episode is scored by another episode's "
            "image. Expected a new array from every reset; return a copy from the environment "
            f"(gymnasium.wrappers.TransformObservation with numpy.copy), or {self._remedy}."
        )
