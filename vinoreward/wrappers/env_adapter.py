"""What all wrappers share: how they go around an environment, and final observations.

Gymnasium's SAME_STEP mode and SB3's vector environments reset an environment before they return the
final observation of its episode. An environment that returns the same array every time has
overwritten it by then. In this process the array is copied in time; in another process, or in an
environment that is vectorised by itself, the fault can only be detected.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.render_once import PlainWrapper, layers, render_once
from vinoreward.wrappers.sources import EnvInfo, ImageReader, ImageSource, ViewReader, takes_render

AnyEnv = TypeVar("AnyEnv")
Env = gym.Env[Any, Any]

ONE = np.ones(1, np.bool_)
"""The mask of a single environment."""
NOTHING: Mapping[int, Any] = MappingProxyType({})
"""No final observations."""
ENDS = 8
"""Episodes in a row that must end with the next one's first image before an error is raised."""


class EnvAdapter(abc.ABC, Generic[AnyEnv]):
    """How a wrapper fits one kind of environment.

    Constructors call ``_env_info``, ``_init_wrapper`` and ``_set_space``, in this order.
    """

    @abc.abstractmethod
    def _env_info(self, env: AnyEnv) -> EnvInfo: ...

    @abc.abstractmethod
    def _init_wrapper(self, env: AnyEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        """Refuse an unsuitable environment; call the library's constructors."""

    def _set_space(self, space: gym.Space[Any]) -> None:
        """Set the observation space of one environment."""
        self.observation_space = space


class SingleAdapter(
    EnvAdapter[Env], gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs
):
    """:class:`EnvAdapter` for one Gymnasium environment."""

    def _env_info(self, env: Env) -> EnvInfo:
        scene = getattr(env.unwrapped, "image_scene", None)
        return EnvInfo(env.observation_space, env.render_mode, scene)

    def _init_wrapper(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        # Recorded so that env.spec can make this environment again, also from JSON.
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, render_once(env) if takes_render(source) else env)


def refuse_autoreset(env: Env, harm: str) -> None:
    """Raise ConfigError if Gymnasium's ``Autoreset`` is inside; ``harm`` goes into its sentence."""
    if any(isinstance(layer, gym.wrappers.Autoreset) for layer in layers(env)):
        raise ConfigError(
            "the environment is wrapped in gymnasium.wrappers.Autoreset, whose step() returns the "
            f"first image of the next episode like any other: {harm}. Expected Autoreset outside; "
            "put it around this wrapper."
        )


class CopyFinalObs(PlainWrapper):
    """Return the final observation of an episode in memory that no reset writes to."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; copy the observation where the episode ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def copy_final_obs(envs: list[Env]) -> None:
    """Put :class:`CopyFinalObs` around each of these environments, in place, once."""
    envs[:] = [env if isinstance(env, CopyFinalObs) else CopyFinalObs(env) for env in envs]


class FinalObs:
    """Has final observations copied before resets; else finds those that resets overwrite.

    Proof is a final observation that shares memory with the next episode's first one. Images from
    another process share none: there :data:`ENDS` episodes in a row must end with exactly the next
    episode's first image, after a step that showed another one. An episode that ends otherwise
    clears the environment for good. ``envs`` are a vector environment's in this process.
    """

    def __init__(self, envs: list[Env] | None, remedy: str) -> None:
        if envs is not None:
            copy_final_obs(envs)
        self._remedy = remedy
        self._copied = envs is not None
        self._before: list[NDArray[Any]] = []
        self._suspicious = 0
        self._cleared = False

    def checked(
        self,
        source: ImageReader | ViewReader,
        final: dict[int, Any],
        observations: Any,
        how: str,
        given: Iterable[str],
    ) -> dict[int, Any]:
        """Return final observations by environment; ``observations`` are all first ones.

        Raises:
            ConfigError: a reset has overwritten one.
            InputError: one is missing; ``how`` and the keys that were ``given`` say where.
        """
        missing = [i for i, observation in final.items() if observation is None]
        if missing:
            raise InputError(
                f"the environments {missing} {how}, only {', '.join(given) or 'nothing'}. Expected "
                "their final observations there, as vector environments give them; without them "
                "the image that an episode ended with is lost."
            )
        if not self._copied:
            self._check(source, final, source.stored(observations))
        return final

    def _check(
        self, source: ImageReader | ViewReader, final: dict[int, Any], images: list[NDArray[Any]]
    ) -> None:
        """Raise ConfigError if final images are the next episodes' first ones, in ``images``."""
        for i, observation in final.items() if images else ():
            # Of each camera, if there are several.
            ends, firsts = source.stored(observation), [part[i] for part in images]
            if any(map(np.shares_memory, ends, firsts)):
                raise self._refusal("is in the memory of the first one of the next episode")
            if not ends or self._cleared:
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


def _equal(some: list[NDArray[Any]], others: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, some, others))
