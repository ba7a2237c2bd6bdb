"""Policies that a capture plays: a run of ours, or a function.

A function's file is run, as the user named it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.environments import as_config_error, check_actions
from vinoreward_actors.actor_learner.acting.evaluation import Player
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_actors.policies import load_policy as load_actors_policy
from vinoreward_training.play.command import is_of_actors
from vinoreward_training.policy.checkpoint import load_policy, read_description
from vinoreward_training.tasks.trust import names_function

Act = Callable[[Any], Any]
"""Returns the action for one observation."""
KINDS = "a run folder, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"


def open_policy(named: str, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    """Return the best actions of a policy in an environment, each checked to be of its space.

    Args:
        named: ``KINDS``.
        env: the environment that it will act in.
        closing: closes what the policy holds.

    Raises:
        ConfigError: no such policy, or one for other observations or actions.
        ModelCorruptError: a damaged file.
    """
    path = Path(named)
    if names_function(named):
        act = named_function(named, "policy", "a function of an observation that gives the action")
    elif path.is_dir():
        act = _of_run(path, env, closing)
    else:
        raise ConfigError(
            field="policy",
            value=named,
            expected=KINDS,
            remedy="for a model of another library write a file with `def act(observation): return "
            "model.predict(observation, deterministic=True)[0]`, and give FILE.py:act",
        )
    return _checked(act, env.action_space, named)


def _checked(act: Act, space: gym.Space[Any], named: str) -> Act:
    """Bring actions to the space's dtype and limits; refuse those of another shape."""

    def checked(observation: Any) -> Any:
        with as_config_error(f"--policy {named} fails", "an action for each observation; mend it"):
            action = act(observation)
        fitting: Any = action
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if isinstance(space, gym.spaces.Box):
                fitting = np.asarray(action, dtype=space.dtype)
                if fitting.shape == space.shape:
                    fitting = np.clip(fitting, space.low, space.high)
            elif isinstance(space, gym.spaces.Discrete) and np.size(action) == 1:
                fitting = int(np.asarray(action).item())
        if not space.contains(fitting):
            raise ConfigError(
                f"--policy {named} gives the action {str(action)[:100]!r}. Expected one of "
                f"{space}, as the environment takes; name a policy for it."
            )
        return fitting

    return checked


def _of_run(folder: Path, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    """Return the policy of a run of ``vinoreward train`` or ``vinoreward actors``."""
    if is_of_actors(folder):
        return _of_actors(folder, env, closing)
    description = read_description(folder)
    if description.encoder is not None:
        raise ConfigError(
            f"the policy in {folder} acts on latents of the encoder {description.encoder}, "
            "which a capture does not compute. Expected one that acts on the environment's own "
            "observations; write a function that encodes, and give FILE.py:FUNCTION."
        )
    model = load_policy(folder, env)
    return lambda observation: model.predict(observation, deterministic=True)[0]


def _of_actors(folder: Path, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    policy = load_actors_policy(folder)
    space, wanted = env.observation_space, policy.spec.observation_shape
    if len(wanted) != 1 or not space.is_np_flattenable or gym.spaces.flatdim(space) != wanted[0]:
        raise ConfigError(
            f"the policy in {folder} acts on observations of the shape {wanted}, and those of the "
            f"environment are {space}. Expected one such row; name a policy for this environment."
        )
    if (folder / "config.yaml").is_file():
        # Only its settings are read: nothing that they name is imported.
        options = ACTORS.of(out=folder, resume=True, trust_run=True).env_kwargs
        if options.get("rescale_observations"):
            raise ConfigError(
                f"the policy in {folder} was trained with rescale_observations, which a capture "
                "does not do. Expected a policy of the environment's own observations; train one, "
                "or write a function that scales them, and give FILE.py:FUNCTION."
            )
    check_actions(env.action_space, policy.spec)
    player = closing.enter_context(Player(policy, env.action_space))
    return lambda observation: player.act(np.asarray(gym.spaces.flatten(space, observation)))
