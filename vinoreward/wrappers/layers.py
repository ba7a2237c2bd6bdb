"""How wrappers go around an environment, and what inside it matters to pictures and rewards."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.wrappers.render_once import layers, render_once

AnyEnv = TypeVar("AnyEnv")

ImageSource = str | Callable[[Any, Any], NDArray[np.uint8]]
"""``"render"``, ``"obs"``, ``"obs:<key>"`` or ``callable(env, observation)``."""

# Attributes by which Gymnasium's RecordEpisodeStatistics and SB3's Monitor are known: also in
# another process, and without importing SB3.
GYMNASIUM_RECORDER, SB3_RECORDER = "return_queue", "get_episode_rewards"


class Inside(NamedTuple):
    """What a wrapper has to know of the environment that it goes around."""

    space: gym.Space[Any]
    """Observation space of one environment."""
    render_mode: str | None
    scene: object
    """What its pictures depend on (``picture_scene``); None where it does not say."""
    num_envs: int = 1


class Form(abc.ABC, Generic[AnyEnv]):
    """How a wrapper goes around one kind of environment: single, Gymnasium's vectors or SB3's.

    The constructors of ``LearnedRewardBase`` and ``EncodedObservationBase`` call its three methods,
    in this order.
    """

    @abc.abstractmethod
    def _inside(self, env: AnyEnv) -> Inside:
        """Return what a wrapper has to know of the environment."""

    @abc.abstractmethod
    def _enclose(self, env: AnyEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        """Refuse an environment that cannot be right; call the constructors of the library.

        ``arguments`` are the wrapper's, as ``env.spec`` records them.
        """

    @abc.abstractmethod
    def _show(self, space: gym.Space[Any]) -> None:
        """Set the observation space of one environment."""


class SingleForm(
    Form[gym.Env[Any, Any]], gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs
):
    """:class:`Form` for one Gymnasium environment."""

    def _inside(self, env: gym.Env[Any, Any]) -> Inside:
        scene = getattr(env.unwrapped, "picture_scene", None)
        return Inside(env.observation_space, env.render_mode, scene)

    def _enclose(
        self, env: gym.Env[Any, Any], source: ImageSource, arguments: dict[str, Any]
    ) -> None:
        # Recorded so that env.spec can make this environment again, also from JSON.
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, render_once(env) if source == "render" else env)

    def _show(self, space: gym.Space[Any]) -> None:
        self.observation_space = space


def refuse_autoreset(env: gym.Env[Any, Any], harm: str) -> None:
    """Raise ConfigError where Gymnasium's ``Autoreset`` is inside; ``harm`` is a clause of it."""
    if any(isinstance(layer, gym.wrappers.Autoreset) for layer in layers(env)):
        raise ConfigError(
            "the environment is wrapped in gymnasium.wrappers.Autoreset, whose step() returns the "
            f"first picture of the next episode like any other: {harm}. Expected Autoreset outside;"
            " put it around this wrapper."
        )


def strict_monitor() -> ConfigError:
    """Return the error for a ``Monitor`` that refuses a reset before its episode ends."""
    return ConfigError(
        "terminate_on_success is set and a Monitor refuses early resets. Expected "
        "Monitor(env, allow_early_resets=True), or terminate_on_success=False."
    )


def has_recorder(env: gym.Env[Any, Any]) -> bool:
    """Return whether something inside reports ``info["episode"]`` at the end of an episode.

    That is Gymnasium's ``RecordEpisodeStatistics`` with its default key, or SB3's ``Monitor``.
    """
    return any(
        hasattr(layer, SB3_RECORDER)
        or (hasattr(layer, GYMNASIUM_RECORDER) and reports_episodes(layer))
        for layer in layers(env)
    )


def reports_episodes(recorder: Any) -> bool:
    """Return whether a recorder writes ``episode``, which another key may stand for."""
    return bool(getattr(recorder, "_stats_key", "episode") == "episode")
