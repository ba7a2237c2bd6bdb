"""How wrappers go around an environment, and what inside it matters to pictures and rewards."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.wrappers.render_once import render_once

AnyEnv = TypeVar("AnyEnv")

ImageSource = str | Callable[[Any, Any], NDArray[np.uint8]]
"""``"render"``, ``"obs"``, ``"obs:<key>"`` or ``callable(env, observation)``."""

# Attributes by which Gymnasium's RecordEpisodeStatistics and SB3's Monitor are known: also in
# another process, and without importing SB3.
_GYMNASIUM, _SB3 = "return_queue", "get_episode_rewards"


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

        Args:
            env: the environment.
            source: where pictures come from.
            arguments: the wrapper's, as ``env.spec`` records them.
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
    """Raise ConfigError where Gymnasium's ``Autoreset`` is anywhere inside.

    Args:
        env: what is to be wrapped.
        harm: what would go wrong, the end of a sentence.
    """
    if any(isinstance(layer, gym.wrappers.Autoreset) for layer in _layers(env)):
        raise ConfigError(
            "the environment is wrapped in gymnasium.wrappers.Autoreset, whose step() returns the "
            f"first picture of the next episode like any other: {harm}. Expected Autoreset outside;"
            " put it around this wrapper."
        )


def refuse_strict_monitor(env: gym.Env[Any, Any]) -> None:
    """Raise ConfigError where a ``Monitor`` inside refuses to be reset before its episode ends."""
    for layer in _layers(env):
        if hasattr(layer, _SB3) and not getattr(layer, "allow_early_resets", True):
            raise strict_monitor()


def strict_monitor() -> ConfigError:
    """Return the error of :func:`refuse_strict_monitor`."""
    return ConfigError(
        "terminate_on_success is set and a Monitor refuses early resets. Expected "
        "Monitor(env, allow_early_resets=True), or terminate_on_success=False."
    )


def has_recorder(env: gym.Env[Any, Any]) -> bool:
    """Return whether something inside reports ``info["episode"]`` at the end of an episode.

    That is Gymnasium's ``RecordEpisodeStatistics`` with its default key, or SB3's ``Monitor``.
    """
    return any(
        hasattr(layer, _SB3) or (hasattr(layer, _GYMNASIUM) and _reports(layer))
        for layer in _layers(env)
    )


def vector_has_recorder(env: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether a vector wrapper inside reports ``infos["episode"]``."""
    return any(
        isinstance(layer, RecordEpisodeStatistics) and _reports(layer) for layer in _layers(env)
    )


def parts_have_recorders(env: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether the sub-environments have one, see :func:`has_recorder`."""
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        return any(has_recorder(part) for part in base.envs)
    if not isinstance(base, AsyncVectorEnv):
        return False
    if all(base.call("has_wrapper_attr", _SB3)):
        return True
    # Asked first, because a missing attribute ends an AsyncVectorEnv's workers.
    if not all(base.call("has_wrapper_attr", "_stats_key")):
        return False
    return "episode" in base.call("get_wrapper_attr", "_stats_key")


def _reports(recorder: Any) -> bool:
    return bool(getattr(recorder, "_stats_key", "episode") == "episode")


def _layers(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Iterator[Any]:
    layer: Any = env
    while isinstance(layer, (gym.Wrapper, VectorWrapper)):
        yield layer
        layer = layer.env
    yield layer
