"""How wrappers go around an environment: one of Gymnasium's, a vector of them, or SB3's."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import gymnasium as gym
import numpy as np

from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.final_obs import FinalObsAliasCheck, copy_final_obs
from vinoreward.wrappers.render_once import layers, render_once
from vinoreward.wrappers.sources import EnvInfo, ImageReader, ImageSource, takes_render
from vinoreward.wrappers.views import ViewReader

AnyEnv = TypeVar("AnyEnv")
Env = gym.Env[Any, Any]

ONE = np.ones(1, np.bool_)
"""The mask of a single environment."""
NOTHING: Mapping[int, Any] = MappingProxyType({})
"""No final observations."""


class EnvAdapter(abc.ABC, Generic[AnyEnv]):
    """How a wrapper goes around one kind of environment: single, Gymnasium's vectors or SB3's.

    Constructors of wrappers call the three methods, in this order.
    """

    _alias_check: FinalObsAliasCheck | None = None

    @abc.abstractmethod
    def _env_info(self, env: AnyEnv) -> EnvInfo:
        """Describe the environment."""

    @abc.abstractmethod
    def _init_wrapper(self, env: AnyEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        """Refuse an unsuitable environment; call the library's constructors.

        ``arguments`` are the wrapper's, as ``env.spec`` records them.
        """

    @abc.abstractmethod
    def _set_space(self, space: gym.Space[Any]) -> None:
        """Set the observation space of one environment."""

    def _keep_final_obs(self, envs: list[Env] | None, remedy: str) -> None:
        """Have final observations copied before resets; else refuse those that resets overwrite.

        ``envs`` are a vector environment's in this process, None elsewhere.
        """
        if envs is not None:
            copy_final_obs(envs)
        else:
            self._alias_check = FinalObsAliasCheck(remedy)

    def _checked_final(
        self,
        source: ImageReader | ViewReader,
        final: dict[int, Any],
        observations: Any,
        how: str,
        given: Iterable[str],
    ) -> dict[int, Any]:
        """Return final observations by environment.

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
        if self._alias_check is not None:
            self._alias_check.check(source, final, observations)
        return final


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

    def _set_space(self, space: gym.Space[Any]) -> None:
        self.observation_space = space


def refuse_autoreset(env: Env, harm: str) -> None:
    """Raise ConfigError if Gymnasium's ``Autoreset`` is inside; ``harm`` goes into its sentence."""
    if any(isinstance(layer, gym.wrappers.Autoreset) for layer in layers(env)):
        raise ConfigError(
            "the environment is wrapped in gymnasium.wrappers.Autoreset, whose step() returns the "
            f"first image of the next episode like any other: {harm}. Expected Autoreset outside; "
            "put it around this wrapper."
        )
