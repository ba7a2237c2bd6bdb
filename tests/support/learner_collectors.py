"""An actor without processes: steps environments with the plain NumPy network, for learners' tests.

No engine is involved: what learners are given is what the contract of a Trajectory says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward_actors.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward_actors.policies.distributions import Exploration, act
from vinoreward_actors.policies.policy import Policy, forward
from vinoreward_actors.policies.spec import PolicySpec

ITSELF = Exploration()
"""A stochastic head's own noise."""


class Target(gym.Env[Any, Any]):
    """A point on a line is to be moved to a place: solved by a proportional step.

    Reward: minus the squared distance. Truncated after 20 steps, terminated beyond 3.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (2,), np.float32)
        self.action_space = gym.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def _observe(self) -> Any:
        return np.array([self.place, self.target], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.target = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.place += float(action[0])
        self.steps += 1
        reward = -((self.place - self.target) ** 2)
        return self._observe(), reward, abs(self.place) > 3, self.steps >= 20, {}


class Collector:
    """Steps several copies of an environment with a policy."""

    def __init__(
        self, make: Callable[[], gym.Env[Any, Any]], spec: PolicySpec, *, count: int, seed: int
    ) -> None:
        self.spec = spec
        self.random = np.random.default_rng(seed)
        self.environments = [make() for _ in range(count)]
        self.now = [
            np.asarray(each.reset(seed=seed * 1000 + index)[0], spec.observation_dtype)
            for index, each in enumerate(self.environments)
        ]
        self.returns: list[float] = []
        self._sums = [0.0] * count

    def collect(self, policy: Policy, steps: int, exploration: Exploration = ITSELF) -> Trajectory:
        """Return the next steps of all environments under a policy."""
        spec = self.spec
        found = TrajectorySpec.of(spec, steps, len(self.environments)).empty()
        for step in range(steps):
            seen = np.stack(self.now)
            outputs = forward(policy, seen)
            acted = act(spec, outputs, self.random, exploration)
            found.observations[step] = seen
            found.actions[step] = acted.actions
            found.log_mu[step] = acted.log_mu
            found.behaviour[step] = outputs
            found.versions[step] = policy.version
            for index, environment in enumerate(self.environments):
                after, reward, terminated, truncated, _ = environment.step(
                    unscaled(environment, acted.actions[index])
                )
                found.rewards[step, index] = reward
                found.terminated[step, index] = terminated
                found.truncated[step, index] = truncated
                found.next_observations[step, index] = after
                self._sums[index] += float(reward)
                if terminated or truncated:
                    self.returns.append(self._sums[index])
                    self._sums[index] = 0.0
                    after, _ = environment.reset()
                self.now[index] = np.asarray(after, spec.observation_dtype)
        return found


def unscaled(environment: gym.Env[Any, Any], action: Any) -> Any:
    """Return an action of [-1, 1] in the environment's bounds; a number stays a number."""
    space = environment.action_space
    if isinstance(space, gym.spaces.Box):
        return space.low + (action + 1) / 2 * (space.high - space.low)
    return int(action)


def evaluate(
    make: Callable[[], gym.Env[Any, Any]], policy: Policy, *, episodes: int = 10, seed: int = 77
) -> float:
    """Return the mean return of a policy's best actions."""
    collector = Collector(make, policy.spec, count=episodes, seed=seed)
    firsts: dict[int, float] = {}
    totals = np.zeros(episodes)
    while len(firsts) < episodes:
        part = collector.collect(policy, 1, Exploration(greedy=True))
        totals += part.rewards[0]
        for index in np.flatnonzero(part.terminated[0] | part.truncated[0]):
            firsts.setdefault(int(index), totals[index])
    return float(np.mean(list(firsts.values())))


def random_trajectory(
    spec: PolicySpec,
    random: np.random.Generator,
    *,
    steps: int = 5,
    count: int = 2,
    ends: float = 0.3,
) -> Trajectory:
    """Return a trajectory of random numbers that is consecutive, as a real one is."""
    shape = (steps, count)
    found = TrajectorySpec.of(spec, steps, count).empty()
    images = spec.observation_dtype == "uint8"

    def observations(*lead: int) -> Any:
        size = (*lead, *spec.observation_shape)
        if images:
            return random.integers(0, 256, size).astype(np.uint8)
        return random.standard_normal(size).astype(np.float32)

    found.terminated[:] = random.random(shape) < ends / 2
    found.truncated[:] = (random.random(shape) < ends / 2) & ~found.terminated
    found.observations[:] = observations(*shape)
    found.next_observations[:-1] = found.observations[1:]
    over = found.terminated | found.truncated
    over[-1] = True
    found.next_observations[over] = observations(int(over.sum()))
    found.rewards[:] = random.standard_normal(shape)
    found.behaviour[:] = random.standard_normal(found.behaviour.shape)
    if spec.discrete:
        found.actions[:] = random.integers(spec.actions, size=shape)
        found.log_mu[:] = -random.random(shape)
    else:
        found.actions[:] = random.uniform(-0.9, 0.9, found.actions.shape)
        found.log_mu[:] = random.standard_normal(shape)
    return found
