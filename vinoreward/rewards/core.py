"""From probabilities to rewards: what LearnedReward and our environments judge with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.rewards.success import Guard, SuccessDetector

RewardMode = Literal["sparse", "probability", "log_odds", "potential"]

REWARD_MODES = ("sparse", "probability", "log_odds", "potential")


@dataclass(frozen=True)
class RewardOptions:
    """The options of a learned reward, checked; see :class:`~vinoreward.LearnedReward`."""

    success_reward: float = 1.0
    step_reward: float = 0.0
    env_reward_weight: float = 0.0
    reward_mode: RewardMode = "sparse"
    success_hold_steps: int = 1
    guard: Guard | None = None
    terminate_on_success: bool = True
    gamma: float = 0.99
    hold_in_observation: bool = False

    def __post_init__(self) -> None:
        for name in ("success_reward", "step_reward", "env_reward_weight", "gamma"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise ConfigError(f"{name} is {value!r}. Expected a number.")
            if not math.isfinite(value):
                raise ConfigError(f"{name} is {value}. Expected a finite number.")
            object.__setattr__(self, name, float(value))  # NumPy's numbers are no JSON
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(
                f"gamma is {self.gamma}. Expected 0 to 1, the discount of your learner."
            )
        if self.reward_mode not in REWARD_MODES:
            raise ConfigError(
                f"reward_mode is {self.reward_mode!r}. Expected one of {', '.join(REWARD_MODES)}."
            )
        for name in ("terminate_on_success", "hold_in_observation"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}. Expected true or false.")


@dataclass(frozen=True)
class Scores:
    """What one step earned; every array is ``(num_envs,)``, zero or False where not scored."""

    rewards: NDArray[np.float64]
    claimed: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    """The environment's own termination, or a claimed success that terminates."""
    probability: NDArray[np.float32]
    returns: NDArray[np.float64]
    """Sum of the rewards of the running episode, this step included."""
    lengths: NDArray[np.int64]
    """Its scored steps."""
    seconds: NDArray[np.float64]
    """Since it began."""

    def episode(self, index: int) -> dict[str, float | int]:
        """Return one environment's ``{"r", "l", "t"}``, as recorders of episodes write it."""
        return {
            "r": round(float(self.returns[index]), 6),
            "l": int(self.lengths[index]),
            "t": round(float(self.seconds[index]), 6),
        }


class RewardCore:
    """Scores transitions of several environments; knows nothing of pictures or of stepping.

    :meth:`transition` takes the transitions that a step made and :meth:`begin` the episodes that
    start, in this order.

    Args:
        options: how scores become rewards.
        threshold: probability from which success is claimed.
        num_envs: environments, each with its own state.

    Raises:
        ConfigError: a threshold, guard or number of steps that cannot work.
    """

    def __init__(self, options: RewardOptions, threshold: float, num_envs: int = 1) -> None:
        self.options = options
        self.detector = SuccessDetector(
            enter=threshold, hold=options.success_hold_steps, guard=options.guard, num_envs=num_envs
        )
        self._potential = np.zeros(num_envs)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._began = np.full(num_envs, time.perf_counter())

    @property
    def needs_first_pictures(self) -> bool:
        """Whether :meth:`begin` needs the probability of the episode's first picture."""
        return self.options.reward_mode == "potential"

    def begin(self, mask: NDArray[np.bool_], probability: NDArray[np.float32]) -> None:
        """Start an episode where ``mask``, ``(num_envs,)`` bool, is True.

        ``probability`` of the first pictures, ``(num_envs,)``, is read in potential mode only.
        """
        self.detector.reset(mask)
        self._potential[mask] = probability[mask]
        self._returns[mask], self._lengths[mask] = 0.0, 0
        self._began[mask] = time.perf_counter()

    def transition(
        self,
        mask: NDArray[np.bool_],
        probability: NDArray[np.float32],
        log_odds: NDArray[np.float32],
        env_rewards: NDArray[np.floating[Any]],
        terminated: NDArray[np.bool_],
        observations: Sequence[Any] | None = None,
    ) -> Scores:
        """Score the transitions of the environments where ``mask`` is True.

        Args:
            mask: ``(num_envs,)`` bool; False for an environment that was only reset.
            probability: ``(num_envs,)`` of the picture that the transition ended with.
            log_odds: of the same pictures.
            env_rewards: ``(num_envs,)`` the environment's own rewards.
            terminated: ``(num_envs,)`` bool, the environment's own.
            observations: one per environment, for the guard.
        """
        options = self.options
        claimed = self.detector.update(probability, mask, observations)
        ended = np.asarray(terminated, np.bool_)
        if options.terminate_on_success:
            ended = ended | claimed
        if options.reward_mode == "probability":
            rewards = probability.astype(np.float64)
        elif options.reward_mode == "log_odds":
            rewards = log_odds.astype(np.float64)
        else:
            rewards = np.where(claimed, options.success_reward, options.step_reward)
        if options.reward_mode == "potential":
            # An absorbing state has potential 0, else the optimal policy may change; a truncated
            # episode has not ended, its last state keeps its potential.
            following = np.where(ended, 0.0, probability.astype(np.float64))
            rewards = rewards + shaping(self._potential, following, options.gamma)
            self._potential = np.where(mask, following, self._potential)
        rewards = rewards + options.env_reward_weight * np.asarray(env_rewards, np.float64)
        rewards = np.where(mask, rewards, 0.0)
        self._returns += rewards
        self._lengths += mask
        return Scores(
            rewards=rewards,
            claimed=claimed,
            terminated=ended & mask,
            probability=np.where(mask, probability, np.float32(0)).astype(np.float32, copy=False),
            returns=self._returns.copy(),
            lengths=self._lengths.copy(),
            seconds=time.perf_counter() - self._began,
        )


def shaping(
    before: NDArray[np.float64], after: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Return ``gamma * phi(s') - phi(s)``, which leaves the optimal policy as it was.

    Ng, Harada & Russell 1999, "Policy invariance under reward transformations", ICML, theorem 1.
    """
    return np.asarray(gamma * after - before)
