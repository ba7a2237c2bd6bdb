"""Environments for a network: their spaces, and several copies, acted on as one batch.

After an episode's end, the observation is the first of the next episode. The final observation is
returned separately, because a truncated episode bootstraps from it.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError, VinorewardError
from vinoreward.rewards.alarms import OodImages
from vinoreward.wrappers.true_success import TrueSuccess, Truth, claim_of
from vinoreward_actors.policies.spec import PolicySpec

Array = npt.NDArray[Any]
ACTION_CURE = "convert them with gymnasium.wrappers.TransformAction"
"""What to do about other action spaces: part of a sentence."""


@contextlib.contextmanager
def as_config_error(what: str, advice: str) -> Iterator[None]:
    """Re-raise an environment's error as a ConfigError that names the environment's code.

    ``what`` failed begins the sentence; the ``advice`` (expected, and what to do) ends it.
    """
    try:
        yield
    except VinorewardError:
        raise
    except Exception as error:  # an environment may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{what}: {type(error).__name__}: {error} ({last.filename}, line {last.lineno}). "
            f"Expected {advice}."
        ) from error


def check_spaces(env: gym.Env[Any, Any], spec: PolicySpec) -> None:
    """Refuse an environment whose spaces do not match a network, by a ConfigError."""
    space, wanted = env.observation_space, spec.observation_shape
    fits = isinstance(space, gym.spaces.Box) and space.shape == wanted
    if not fits or space.dtype is None or not _castable(space.dtype, spec):
        kinds = "uint8" if spec.observation_dtype == "uint8" else "float32 (or other numbers)"
        raise ConfigError(
            f"the environment's observations are {space}. Expected a Box of {kinds} of the shape "
            f"{wanted}, as the network; convert them with a wrapper of gymnasium.wrappers, such as "
            "FlattenObservation, DtypeObservation or TransformObservation."
        )
    check_actions(env.action_space, spec)


def observed(rows: npt.ArrayLike, spec: PolicySpec) -> Array:
    """Convert observations of any shape to a network's dtype; without a copy if possible.

    A float32 network also accepts float64 and integers, rounded to float32 (integers above 2^24
    lose digits; values beyond float32 become infinity, which the backend refuses). A network for
    uint8 images accepts only uint8: other numbers would be other images.

    Raises:
        InputError: another kind of numbers.
    """
    array = np.asarray(rows)
    if array.dtype == spec.observation_dtype:
        return array
    if not _castable(array.dtype, spec):
        raise InputError(
            f"observations are {array.dtype}{array.shape}. Expected {spec.observation_dtype}"
            f"{'' if spec.observation_dtype == 'uint8' else ' or other real numbers'}, as in the "
            "policy's training."
        )
    with np.errstate(over="ignore"):
        return array.astype(spec.observation_dtype)


def _castable(dtype: np.dtype[Any], spec: PolicySpec) -> bool:
    images = spec.observation_dtype == "uint8"
    return np.can_cast(dtype, spec.observation_dtype, "safe" if images else "same_kind")


def check_actions(space: gym.Space[Any], spec: PolicySpec) -> None:
    """Refuse an action space that does not match a network or has no limits."""
    if spec.discrete:
        fits = isinstance(space, gym.spaces.Discrete) and int(space.n) == spec.actions
    else:
        fits = isinstance(space, gym.spaces.Box) and space.shape == (spec.actions,)
        if isinstance(space, gym.spaces.Box) and fits and not space.is_bounded():
            raise ConfigError(
                f"the environment's actions are {space}. Expected finite limits for every action, "
                f"because the network's -1 to 1 is scaled to them; {ACTION_CURE}."
            )
    if not fits:
        raise ConfigError(
            f"the environment's actions are {space}. Expected "
            f"{'Discrete' if spec.discrete else 'a Box'} of {spec.actions}, as the network's "
            f"{spec.head} head gives; {ACTION_CURE}, or make a network for these."
        )


def in_space(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert a network's actions to a space.

    From (...) integers from 0, or (..., A) in [-1, 1], to a Discrete, or a Box (A,) with limits.
    """
    if not isinstance(space, gym.spaces.Box):
        return np.asarray(actions) + int(getattr(space, "start", 0))
    low, high = space.low, space.high
    if np.issubdtype(space.dtype, np.integer):
        # Each value has an equal share of [-1, 1].
        low, high = low.astype(np.float64), high.astype(np.float64)
        scaled = np.floor(low + (np.asarray(actions) + 1.0) * 0.5 * (high - low + 1.0))
    else:
        scaled = low + (np.asarray(actions) + 1.0) * 0.5 * (high - low)
    # Rounding can slightly leave the space, which some environments refuse.
    clipped: Array = np.clip(scaled, low, high).astype(space.dtype)
    return clipped


@dataclass(frozen=True)
class EnvironmentSpec:
    """How to make an environment in another process; plain data.

    Attributes:
        factory: a Gymnasium id (``"CartPole-v1"``, ``"package:Id-v0"``), or ``"module:function"``
            for a function that returns an environment.
        kwargs: for the factory; plain data.
        truth_key: key of ``info`` with the truth about success; None: found automatically, see
            :class:`~vinoreward.wrappers.true_success.Truth`.
        truth: instead of a key, a function of the environment, see
            :class:`~vinoreward.TrueSuccess`.

    Raises:
        ConfigError: on ``make``, if the factory does not give an environment.
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    truth_key: str | None = None
    truth: str | None = None

    def __str__(self) -> str:
        return f"{self.factory} with {dict(self.kwargs)}" if self.kwargs else self.factory

    def make(self) -> gym.Env[Any, Any]:
        """Make one environment."""
        env = self._made()
        return env if self.truth is None else TrueSuccess(env, self.truth)

    def _made(self) -> gym.Env[Any, Any]:
        module, _, name = self.factory.partition(":")
        if name.isidentifier():  # Gymnasium names end in a version such as -v0
            factory = getattr(importlib.import_module(module), name, None)
            if not callable(factory):
                raise ConfigError(
                    f"{self.factory} is not a function. Expected module:function, or a Gymnasium "
                    "id such as CartPole-v1."
                )
            env = factory(**self.kwargs)
            if not isinstance(env, gym.Env):
                raise ConfigError(
                    f"{self.factory} returned {type(env).__name__}. Expected a Gymnasium "
                    "environment."
                )
            return env
        importlib.import_module("vinoreward")  # registers the environments
        return gym.make(self.factory, **self.kwargs)


@dataclass(frozen=True)
class Episode:
    """A finished episode."""

    env: int  # index of the environment in its actor
    reward: float  # sum of its rewards
    length: int  # steps
    true_success: bool | None = None  # the simulator's verdict; None if there is none
    claimed_success: bool | None = None  # the learned reward's verdict; None if there is none
    score: float | None = None  # sum of the task's own rewards if they differ from the training's
    ood: bool | None = (
        None  # whether many of its images were out of distribution; None without a guard
    )


@dataclass
class EpisodeSum:
    """The running sums of one environment's episode."""

    reward: float = 0.0
    length: int = 0
    images: OodImages = field(default_factory=OodImages)

    def add(self, reward: float, info: Mapping[str, Any]) -> None:
        """Add a step."""
        self.reward += float(reward)
        self.length += 1
        self.images.add(info)

    def finished(self, env: int, info: Mapping[str, Any], truth: Truth) -> Episode:
        """Return the episode that ended with a step of this ``info``."""
        # Of gymnasium.wrappers.RecordEpisodeStatistics: what was paid inside the wrappers.
        score = float(info["episode"]["r"]) if "episode" in info else None
        ood = self.images.many
        return Episode(env, self.reward, self.length, truth(info), claim_of(info), score, ood)


class Stepped(NamedTuple):
    """Result of a step of N environments; arrays (N,) or (N, *shape)."""

    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]  # never with terminated
    next_observations: Array  # the true successors, final observations included
    episodes: tuple[Episode, ...]


class Environments:
    """N environments with automatic reset.

    Args:
        spec: of each.
        policy: the network; the spaces must match it.
        count: N.
        seed: of the first environment's first episode; the next environment gets the next number.
        on_reset: called with True before each later reset, with False after it.
    """

    observations: Array
    """(N, *shape), the current observations."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        policy: PolicySpec,
        count: int,
        seed: int,
        on_reset: Callable[[bool], None] = lambda begins: None,
    ) -> None:
        self._policy, self._on_reset = policy, on_reset
        self._truth = Truth(spec.truth_key)
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in range(count):
                self._envs.append(spec.make())
            check_spaces(self._envs[0], policy)
        except BaseException:
            self.close()
            raise
        self._sums = [EpisodeSum() for _ in self._envs]
        first = [env.reset(seed=seed + at)[0] for at, env in enumerate(self._envs)]
        self.observations = np.stack([observed(each, policy) for each in first])

    def step(self, actions: Array) -> Stepped:
        """Step every environment and reset those whose episode ended.

        Args:
            actions: (N,) integers, or (N, A) in [-1, 1], scaled to the action space.
        """
        rewards = np.zeros(len(self._envs), dtype=np.float32)
        terminated, truncated = np.zeros_like(rewards, bool), np.zeros_like(rewards, bool)
        following = np.empty_like(self.observations)
        # A new array: the caller may still copy the old one into a trajectory.
        self.observations = np.empty_like(self.observations)
        episodes = []
        for at, env in enumerate(self._envs):
            action = in_space(actions[at], env.action_space)
            stepped = env.step(int(action) if self._policy.discrete else action)
            observation, reward, ended, cut, info = stepped
            rewards[at], terminated[at] = reward, ended
            truncated[at] = cut and not ended
            following[at] = observed(observation, self._policy)
            self._sums[at].add(float(reward), info)
            if ended or cut:
                episodes.append(self._sums[at].finished(at, info, self._truth))
                self._sums[at] = EpisodeSum()
                self._on_reset(True)
                self.observations[at] = observed(env.reset()[0], self._policy)
                self._on_reset(False)
            else:
                self.observations[at] = following[at]
        return Stepped(rewards, terminated, truncated, following, tuple(episodes))

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._envs = []
