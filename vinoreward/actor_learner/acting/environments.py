"""An actor's environments: several copies, stepped in turn, acted on as one batch.

After an episode's end, the observation is the first of the next episode. The final observation is
returned separately, because a truncated episode bootstraps from it.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.spaces import check_spaces, in_space, observed
from vinoreward.errors import ConfigError, VinorewardError
from vinoreward.policies.spec import PolicySpec
from vinoreward.rewards.success import Truth, claim_of

Array = npt.NDArray[Any]


@contextlib.contextmanager
def failures_told(what: str, advice: str) -> Iterator[None]:
    """Re-raise an environment's error as a ConfigError that names the environment's code.

    Args:
        what: what failed, and when; the beginning of the sentence.
        advice: what was expected and what to do; its end.

    Raises:
        ConfigError: the environment raised an error, which is attached as the cause.
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


@dataclass(frozen=True)
class EnvironmentSpec:
    """How to make an environment in another process; plain data.

    Attributes:
        factory: a Gymnasium id (``"CartPole-v1"``, ``"package:Id-v0"``), or ``"module:function"``
            for a function that returns an environment.
        kwargs: for the factory; plain data.

    Raises:
        ConfigError: on ``make``, if the factory does not give an environment.
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.factory} with {dict(self.kwargs)}" if self.kwargs else self.factory

    def make(self) -> gym.Env[Any, Any]:
        """Make one environment."""
        module, _, name = self.factory.partition(":")
        if name.isidentifier():  # Gymnasium names end in a version such as -v0
            found = getattr(importlib.import_module(module), name, None)
            if not callable(found):
                raise ConfigError(
                    f"{self.factory} is not a function. Expected module:function, or a Gymnasium "
                    "id such as CartPole-v1."
                )
            made = found(**self.kwargs)
            if not isinstance(made, gym.Env):
                raise ConfigError(
                    f"{self.factory} returned {type(made).__name__}. Expected a Gymnasium "
                    "environment."
                )
            return made
        importlib.import_module("vinoreward")  # registers the environments

        return gym.make(self.factory, **self.kwargs)


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        env: index of the environment in its actor.
        reward: sum of its rewards.
        length: steps.
        true_success: the simulator's verdict, see :class:`~vinoreward.rewards.success.Truth`;
            None if there is none.
        claimed_success: the learned reward's verdict; None if there is none.
        score: sum of the task's own rewards if they differ from the training rewards.
    """

    env: int
    reward: float
    length: int
    true_success: bool | None = None
    claimed_success: bool | None = None
    score: float | None = None


@dataclass(frozen=True)
class Stepped:
    """Result of a step of N environments.

    Attributes:
        rewards: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool, never where terminated.
        next_observations: (N, *shape) true successors, final observations included.
        episodes: finished in this step.
    """

    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    next_observations: Array
    episodes: tuple[Episode, ...]


class Environments:
    """N environments with automatic reset.

    Args:
        spec: of each.
        policy: the network; the spaces must match it.
        count: N.
        seed: of the first environment's first episode; the next environment gets the next number,
            and so on. Later episodes follow from it.

    Raises:
        ConfigError: the spaces do not match the network.
    """

    observations: Array
    """(N, *shape), the current observations."""

    def __init__(self, spec: EnvironmentSpec, policy: PolicySpec, count: int, seed: int) -> None:
        self._policy = policy
        self._truth = Truth()
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in range(count):
                self._envs.append(spec.make())
            check_spaces(self._envs[0], policy)
        except BaseException:
            self.close()
            raise
        self._rewards = np.zeros(count)
        self._lengths = np.zeros(count, dtype=np.int64)
        self.observations = np.stack(
            [self._taken(env.reset(seed=seed + at)[0]) for at, env in enumerate(self._envs)]
        )

    def _taken(self, observation: Any) -> Array:
        return observed(observation, self._policy)

    def _given(self, action: Any, env: gym.Env[Any, Any]) -> Any:
        """Convert a network's action to the environment's action space."""
        space = env.action_space
        if isinstance(space, gym.spaces.Box):
            return in_space(action, space)
        return int(action) + int(getattr(space, "start", 0))

    def step(self, actions: Array) -> Stepped:
        """Step every environment and reset those whose episode ended.

        Args:
            actions: (N,) integers, or (N, A) in [-1, 1], scaled to the action space.
        """
        count = len(self._envs)
        rewards = np.zeros(count, dtype=np.float32)
        terminated, truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        following = np.empty_like(self.observations)
        # A new array: the caller may still copy the old one into a trajectory.
        self.observations = np.empty_like(self.observations)
        episodes = []
        for at, env in enumerate(self._envs):
            observation, reward, ended, cut, info = env.step(self._given(actions[at], env))
            rewards[at], terminated[at] = reward, ended
            truncated[at] = cut and not ended
            following[at] = self._taken(observation)
            self._rewards[at] += float(reward)
            self._lengths[at] += 1
            if ended or cut:
                score = info.get("score")
                episodes.append(
                    Episode(
                        at,
                        float(self._rewards[at]),
                        int(self._lengths[at]),
                        self._truth(info),
                        claim_of(info),
                        None if score is None else float(score),
                    )
                )
                self._rewards[at], self._lengths[at] = 0.0, 0
                self.observations[at] = self._taken(env.reset()[0])
            else:
                self.observations[at] = following[at]
        return Stepped(rewards, terminated, truncated, following, tuple(episodes))

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._envs = []
