"""Environments by id, with a learned reward: those that have one, and any other, wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

import vinoreward  # noqa: F401  (registers PandaHover-v0 and its siblings)
from vinoreward.errors import ConfigError


def has_own_reward(env_id: str) -> bool:
    """Say whether the environment judges with a bundle by itself (ours do).

    Raises:
        ConfigError: no environment of that id is registered.
    """
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        raise ConfigError(
            f"no environment {env_id!r}: {error}. Expected a registered id such as PandaHover-v0, "
            "or package:Id-v0 for one that a package registers when it is imported."
        ) from error
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("vinoreward_envs.")


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str = "openvino",
    bundle: str | None = None,
    precision: str = "auto",
    wrap_bundle: bool = False,
    render_mode: str | None = None,
) -> gym.Env[Any, Any]:
    """Make one environment.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: further arguments of the environment; YAML lists become tuples.
        backend: runs the bundle's network; ``"oracle"`` for our environments only.
        bundle: name or folder; None is the environment's default.
        precision: as the backend takes it.
        wrap_bundle: put ``LearnedReward`` around an environment that has no learned reward.
        render_mode: None leaves the choice to the environment (``rgb_array`` if wrapped).

    Raises:
        ConfigError: no such environment, an argument it does not take, or nothing to wrap with.
    """
    arguments = {key: _tupled(value) for key, value in (env_kwargs or {}).items()}
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    if has_own_reward(env_id):
        if bundle is not None:
            arguments["bundle"] = bundle
        return _made(env_id, {"backend": backend, "precision": precision, **arguments})
    if not wrap_bundle:
        return _made(env_id, arguments)
    if bundle is None:
        raise ConfigError(
            f"{env_id} has no learned reward of its own and no bundle was named. Expected the name "
            "or folder of a bundle to wrap it with; add --bundle."
        )
    from vinoreward.wrappers.learned_reward import LearnedReward

    arguments.setdefault("render_mode", "rgb_array")
    return LearnedReward(
        _made(env_id, arguments),
        Path(bundle) if Path(bundle).exists() else bundle,
        backend=backend,
        precision=precision,
    )


def _made(env_id: str, arguments: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        return gym.make(env_id, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{env_id} does not take these arguments: {error}. Expected what its class documents; "
            "change --env-kwargs."
        ) from error


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value
