"""Checks and conversions between an environment's spaces and a network."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward.policies.spec import PolicySpec

Array = npt.NDArray[Any]


def check_spaces(env: gym.Env[Any, Any], spec: PolicySpec) -> None:
    """Refuse an environment whose spaces do not match a network.

    Raises:
        ConfigError: other observations or actions.
    """
    seen, done = env.observation_space, env.action_space
    if (
        not isinstance(seen, gym.spaces.Box)
        or seen.shape != spec.observation_shape
        or seen.dtype is None
        or not _castable(seen.dtype, spec)
    ):
        kinds = "uint8" if spec.observation_dtype == "uint8" else "float32 (or other numbers)"
        raise ConfigError(
            f"the environment's observations are {seen}. Expected a Box of {kinds} of the shape "
            f"{spec.observation_shape}, as the network; "
            f"{_observation_cure(seen, spec.observation_shape)}."
        )
    check_actions(done, spec)


def observed(rows: npt.ArrayLike, spec: PolicySpec) -> Array:
    """Convert observations to a network's dtype; all conversions happen here.

    A float32 network also accepts float64 and integers, rounded to float32 (integers above 2^24
    lose digits; values beyond float32 become infinity, which the backend refuses). A network for
    uint8 images accepts only uint8: other numbers would be other images.

    Args:
        rows: of any shape.
        spec: of the network.

    Returns:
        An array of the network's dtype; without a copy if possible.

    Raises:
        InputError: another kind of numbers.
    """
    seen = np.asarray(rows)
    if seen.dtype == spec.observation_dtype:
        return seen
    if not _castable(seen.dtype, spec):
        raise InputError(
            f"observations are {seen.dtype}{seen.shape}. Expected {spec.observation_dtype}"
            f"{'' if spec.observation_dtype == 'uint8' else ' or other real numbers'}, as in the "
            "policy's training."
        )
    with np.errstate(over="ignore"):
        return seen.astype(spec.observation_dtype)


def _castable(kind: np.dtype[Any], spec: PolicySpec) -> bool:
    casting: Literal["safe", "same_kind"] = (
        "safe" if spec.observation_dtype == "uint8" else "same_kind"
    )
    return np.can_cast(kind, spec.observation_dtype, casting)


def check_actions(done: gym.Space[Any], spec: PolicySpec) -> None:
    """Refuse an action space that does not match a network.

    Raises:
        ConfigError: other actions, or actions without limits.
    """
    if spec.discrete:
        fits = isinstance(done, gym.spaces.Discrete) and int(done.n) == spec.actions
    else:
        fits = isinstance(done, gym.spaces.Box) and done.shape == (spec.actions,)
        if isinstance(done, gym.spaces.Box) and fits and not done.is_bounded():
            raise ConfigError(
                f"the environment's actions are {done}. Expected finite limits for every action, "
                f"because the network's -1 to 1 is scaled to them; {action_cure(done)}."
            )
    if not fits:
        raise ConfigError(
            f"the environment's actions are {done}. Expected "
            f"{'Discrete' if spec.discrete else 'a Box'} of {spec.actions}, as the network's "
            f"{spec.head} head gives; {action_cure(done)}, or make a network for these."
        )


def _observation_cure(space: gym.Space[Any], wanted: tuple[int, ...]) -> str:
    shape = space.shape or ()
    if len(shape) == 3 and (shape[2], *shape[:2]) == wanted:
        return (
            "move the channels first with gymnasium.wrappers.TransformObservation(env, lambda "
            f"seen: seen.transpose(2, 0, 1), gymnasium.spaces.Box(0, 255, {wanted}, numpy.uint8))"
        )
    return (
        "convert them with FlattenObservation, DtypeObservation or TransformObservation of "
        "gymnasium.wrappers"
    )


def action_cure(space: gym.Space[Any]) -> str:
    """Name a Gymnasium wrapper that converts an action space for a network.

    Args:
        space: integers that do not start at 0, actions with several axes, or without limits; for
            other spaces only the wrapper's name is returned.
    """
    how = "env, ..."
    if isinstance(space, gym.spaces.Discrete) and space.start != 0:
        how = f"env, lambda action: action + {space.start}, gymnasium.spaces.Discrete({space.n})"
    elif isinstance(space, gym.spaces.Box) and not space.is_bounded():
        rows = "" if len(space.shape) == 1 else f".reshape{space.shape}"
        box = f"gymnasium.spaces.Box(-1, 1, ({int(np.prod(space.shape))},))"
        return (
            "give them limits (yours for -1 and 1) with gymnasium.wrappers.TransformAction("
            f"env, lambda action: action{rows}, {box})"
        )
    elif isinstance(space, gym.spaces.Box) and len(space.shape) != 1:
        how = (
            f"env, lambda action: action.reshape{space.shape}, gymnasium.spaces.Box("
            "env.action_space.low.ravel(), env.action_space.high.ravel())"
        )
    return f"convert them with gymnasium.wrappers.TransformAction({how})"


def in_space(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert a network's actions to a space.

    Args:
        actions: (...) integers from 0, or (..., A) in [-1, 1].
        space: Discrete, or a Box of shape (A,) with limits.
    """
    if not isinstance(space, gym.spaces.Box):
        return np.asarray(actions) + int(getattr(space, "start", 0))
    low, high = space.low, space.high
    scaled = low + (np.asarray(actions) + 1.0) * 0.5 * (high - low)
    # Rounding can slightly leave the space, which some environments refuse.
    found: Array = np.clip(scaled, low, high).astype(space.dtype)
    return found
