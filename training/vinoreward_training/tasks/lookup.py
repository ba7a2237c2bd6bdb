"""Makes the papers' tasks, and any other environment that Gymnasium knows, for actors.

What a task needs is imported when it is made; torch is never.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    DtypeObservation,
    FlattenObservation,
    RescaleAction,
    RescaleObservation,
    TimeLimit,
)

from vinoreward.actor_learner.acting.environments import failures_told
from vinoreward.actor_learner.acting.spaces import action_cure
from vinoreward.errors import ConfigError
from vinoreward_training.tasks.atari import AtariEnv
from vinoreward_training.tasks.dm_control import DmControlEnv
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.table import TASKS, Task

Env = gym.Env[Any, Any]
PICTURE_CURE = (
    "make that with GrayscaleObservation, ResizeObservation to (84, 84) and FrameStackObservation "
    "of 4, or one row with FlattenObservation, all of gymnasium.wrappers"
)
"""What to do about pictures of another shape: the end of a sentence."""
_OURS = ("normalise_actions", "rescale_observations", "max_steps", "render_mode")
"""Options of :func:`make_task` that the environment itself does not get."""
# The checker looks at a first step only, but stays in the way of all others.
_UNCHECKED = {"disable_env_checker": True}


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Return a task of the table, or describe another environment by making it once.

    Args:
        name: of a task; or ``dm_control/DOMAIN-TASK``, ``atari/GAME`` or an id of Gymnasium's, of
            which ``package:Id-v0`` imports the package.
        options: of :func:`make_task`, for an environment that cannot be made without.

    Raises:
        ConfigError: none of these, an environment that cannot be made with these options, or
            observations or actions that no policy here takes.
        MissingExtraError: the environment lacks a package.
    """
    if name in TASKS:
        return TASKS[name]
    prefix, _, source = name.partition("/")
    if name not in gym.registry and prefix == "dm_control":
        found = Task(name, "dm_control", source, (1,), 1, False, 1000, "2x256")
    elif name not in gym.registry and prefix == "atari":
        found = Task(name, "atari", source, (1,), 1, True, 27_000, "original")
    elif name in gym.registry or ":" in name:
        found = Task(name, "gym", name, (1,), 1, True, 0, "2x256")
    else:
        raise ConfigError(
            f"no task {name!r}. Expected one of: {', '.join(TASKS)}; or dm_control/DOMAIN-TASK, "
            "atari/GAME, or the id of a registered Gymnasium environment (package:Id-v0 for one "
            "that a package registers)."
        )
    own = {key: value for key, value in (options or {}).items() if key not in _OURS}
    return _described(found, own)


def _described(task: Task, options: Mapping[str, Any]) -> Task:
    """Fill in what only the environment knows."""
    env = _flat(_made(task, None, None, options), task.name)
    try:
        observations, actions, spec = env.observation_space, env.action_space, env.spec
        if isinstance(actions, gym.spaces.Discrete) and actions.start == 0:
            count, discrete = int(actions.n), True
        elif isinstance(actions, gym.spaces.Box) and len(actions.shape) == 1:
            count, discrete = actions.shape[0], False
        else:
            raise ConfigError(
                f"{task.name} takes actions from {actions}. Expected Discrete actions from 0, or a "
                f"Box of one row; {action_cure(actions)}."
            )
        return dataclasses.replace(
            task,
            observation_shape=observations.shape or (),
            observation_dtype="uint8" if observations.dtype == np.uint8 else "float32",
            actions=count,
            discrete=discrete,
            max_steps=task.max_steps or (spec.max_episode_steps if spec else None) or 1000,
            threshold=spec.reward_threshold if spec else None,
            title=task.name,
        )
    finally:
        env.close()


def make_task(
    name: str,
    seed: int | None = None,
    *,
    normalise_actions: bool = True,
    rescale_observations: bool = False,
    max_steps: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> Env:
    """Make a task's environment.

    Observations are one float32 row, or (4, 84, 84) uint8 pictures; actions are Discrete (from 0)
    or a Box of one row. A time limit truncates; it never terminates.

    Args:
        name: of a task, or an environment's id; see :func:`find_task`.
        seed: of the first reset that names none itself, and of the action space. None: drawn.
        normalise_actions: scale Box actions to [-1, 1].
        rescale_observations: scale bounded rows to [-1, 1]: MountainCar's velocity is within 0.07,
            beside a position of 1.2, and hardly moves a network otherwise.
        max_steps: truncate episodes there instead of at the task's own limit; earlier only, but
            for Gymnasium's environments.
        render_mode: None or ``"rgb_array"``.
        options: the environment's own: ``episodic_life`` and others of ``AtariEnv``; ``backend``
            and others of ``PandaHoverEnv``; keyword arguments of a Gymnasium environment.

    Raises:
        ConfigError: no such task, or an option that it does not take.
        MissingExtraError: what it needs is not installed; the message says how to.
    """
    if max_steps is not None and not (_whole(max_steps) and max_steps >= 1):
        raise ConfigError(f"found max_steps={max_steps!r}. Expected 1 or more, or None.")
    task = find_task(name, options)
    env = _flat(_made(task, max_steps, render_mode, options), name)
    if normalise_actions:
        env = _normalised(env, name)
    if rescale_observations:
        env = _rescaled(env, name)
    return _FirstSeed(env, seed) if seed is not None else env


class _FirstSeed(gym.Wrapper[Any, Any, Any, Any]):
    """Gives the first reset a seed, so that an environment needs nothing else to be repeatable."""

    def __init__(self, env: Env, seed: int) -> None:
        super().__init__(env)
        self._seed: int | None = seed
        env.action_space.seed(seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        first, self._seed = self._seed, None
        return self.env.reset(seed=first if seed is None else seed, options=options)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _made(
    task: Task, max_steps: int | None, render_mode: str | None, options: Mapping[str, Any]
) -> Env:
    """Make an environment of a suite, with errors that name the task."""
    with failures_told(
        f"an environment of {task.name} cannot be made",
        "one that can; mend it, or change its options",
    ):
        if task.suite == "gym":
            steps = max_steps or task.max_steps or None
            limit = {} if steps is None else {"max_episode_steps": steps}
            return make_env(
                task.source, {**options, **limit, **_UNCHECKED}, render_mode=render_mode
            )
        env: Env
        try:
            if task.suite == "dm_control":
                domain, _, part = task.source.partition("-")
                env = DmControlEnv(domain, part, render_mode=render_mode, **options)
            elif task.suite == "atari":
                env = AtariEnv(task.source, render_mode=render_mode, **options)
            else:
                env = make_env(task.source, {**options, **_UNCHECKED}, render_mode=render_mode)
        except TypeError as error:
            raise ConfigError(
                f"{task.name} does not take these options: {error}. Expected those that its class "
                "documents."
            ) from error
        if max_steps is not None and max_steps < task.max_steps:
            env = TimeLimit(env, max_steps)
        return env


def _flat(env: Env, name: str) -> Env:
    """Make observations one float32 row, but for pictures of (C, H, W) uint8."""
    space = env.observation_space
    if not space.is_np_flattenable:
        env.close()
        raise ConfigError(
            f"{name} gives observations from {space}. Expected what fits one row of fixed length; "
            "wrap the environment."
        )
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        if space.shape[0] > space.shape[2]:
            env.close()
            raise ConfigError(
                f"{name} gives pictures of {space.shape}. Expected (channels, height, width), of "
                f"which networks here take (4, 84, 84); {PICTURE_CURE}."
            )
        return env
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        env = FlattenObservation(env)
    if env.observation_space.dtype != np.float32:
        env = DtypeObservation(env, np.float32)
    return env


def _normalised(env: Env, name: str) -> Env:
    """Scale the actions of a Box to [-1, 1]."""
    space = env.action_space
    if isinstance(space, gym.spaces.Box):
        low, high = space.low, space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all() and len(space.shape) == 1):
            env.close()
            raise ConfigError(
                f"{name} takes actions from {space}. Expected one row of bounded numbers, to be "
                f"scaled to [-1, 1]; {action_cure(space)}."
            )
        if not (np.all(low == -1.0) and np.all(high == 1.0)):
            return RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return env


def _rescaled(env: Env, name: str) -> Env:
    """Scale observations to [-1, 1]."""
    space = env.observation_space
    if not (isinstance(space, gym.spaces.Box) and space.is_bounded() and len(space.shape) == 1):
        env.close()
        raise ConfigError(
            f"{name} gives observations from {space}. Expected one row of bounded numbers, to be "
            "scaled to [-1, 1]; leave out rescale_observations."
        )
    return RescaleObservation(env, np.float32(-1.0), np.float32(1.0))
