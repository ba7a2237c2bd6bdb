"""The environments of one actor: several of one kind, stepped in turn, acted on as one batch.

An actor's observation after an episode's end is the first of the next episode; what followed the
last action is kept beside it, because a truncated episode is bootstrapped from there.
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
from vinoreward.success import Truth, claim_of

Array = npt.NDArray[Any]


@contextlib.contextmanager
def failures_told(what: str, advice: str) -> Iterator[None]:
    """Say whose fault it is where an environment fails within the block.

    Args:
        what: failed, and when; the beginning of the sentence.
        advice: what was expected and what to do; its end.

    Raises:
        ConfigError: the environment raised something that says nothing to its user; the cause.
    """
    try:
        yield
    except VinorewardError:
        raise
    except Exception as error:  # an environment may raise anything; nothing is swallowed
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{what}: {type(error).__name__}: {error} ({last.filename}, line {last.lineno}). "
            f"Expected {advice}."
        ) from error


@dataclass(frozen=True)
class EnvironmentSpec:
    """How another process makes an environment: plain data.

    Attributes:
        factory: a Gymnasium id (``"CartPole-v1"``, ``"package:Id-v0"``), or ``"module:function"``
            of a function that returns an environment.
        kwargs: for the factory; plain data.

    Raises:
        ConfigError: an environment cannot be made of it (when it is made).
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.factory} with {dict(self.kwargs)}" if self.kwargs else self.factory

    def make(self) -> gym.Env[Any, Any]:
        """Make one environment."""
        module, _, name = self.factory.partition(":")
        if name.isidentifier():  # the name of a Gymnasium environment ends in -v0 or so
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
        import vinoreward  # noqa: F401  (registers the environments)

        return gym.make(self.factory, **self.kwargs)


@dataclass(frozen=True)
class Episode:
    """One that has ended.

    Attributes:
        env: number of the environment in its actor.
        reward: sum of its rewards.
        length: steps.
        true_success: what the simulator says, as :class:`~vinoreward.success.Truth` finds it; None
            where it says nothing.
        claimed_success: what a learned reward says, None where there is none.
        score: sum of the task's own rewards where those differ from what is learned from.
    """

    env: int
    reward: float
    length: int
    true_success: bool | None = None
    claimed_success: bool | None = None
    score: float | None = None


@dataclass(frozen=True)
class Stepped:
    """What a step gave, for N environments.

    Attributes:
        rewards: (N,) float32.
        terminated: (N,) bool.
        truncated: (N,) bool, never where terminated.
        next_observations: (N, *shape) what followed the action, final ones included.
        episodes: those that ended.
    """

    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    next_observations: Array
    episodes: tuple[Episode, ...]


class Environments:
    """N environments that reset themselves.

    Args:
        spec: of each.
        policy: what acts; the spaces must fit.
        count: N.
        seed: of the first one's first episode, the next one's is one higher, and so on; further
            episodes follow from it.

    Raises:
        ConfigError: the spaces do not fit the network.
    """

    observations: Array
    """(N, *shape), what to act on now."""

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
        """Return an action of the network as the environment takes it."""
        space = env.action_space
        if isinstance(space, gym.spaces.Box):
            return in_space(action, space)
        return int(action) + int(getattr(space, "start", 0))

    def step(self, actions: Array) -> Stepped:
        """Step every environment and reset those whose episode ended.

        Args:
            actions: (N,) whole numbers, or (N, A) in [-1, 1], which is the action space's range.
        """
        count = len(self._envs)
        rewards = np.zeros(count, dtype=np.float32)
        terminated, truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        following = np.empty_like(self.observations)
        # A new array: the old one may still be on its way into a trajectory.
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
