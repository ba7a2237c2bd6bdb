"""What is inside the environment that is wrapped, and matters to a learned reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from vinoreward.errors import ConfigError

# Attributes by which Gymnasium's RecordEpisodeStatistics and SB3's Monitor are known: also in
# another process, and without importing SB3.
_GYMNASIUM, _SB3 = "return_queue", "get_episode_rewards"


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
    layer: Any = env
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, RecordEpisodeStatistics) and _reports(layer):
            return True
        layer = layer.env
    return False


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


def _layers(env: gym.Env[Any, Any]) -> Iterator[Any]:
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        yield layer
        layer = layer.env
    yield layer
