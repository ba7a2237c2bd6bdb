"""What the three forms of LearnedReward share: options, scores and per-environment state."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.detector import Guard, SuccessDetector

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
    """Scores transitions of several environments; knows nothing of how they are stepped.

    One call of :meth:`look` per step scores all pictures that the step needs. Then
    :meth:`transition` takes those that ended a transition and :meth:`begin` those that start an
    episode, in this order.

    Args:
        classifier: what scores pictures.
        options: how scores become rewards.
        num_envs: environments, each with its own state.
    """

    def __init__(self, classifier: Classifier, options: RewardOptions, num_envs: int) -> None:
        self.classifier = classifier
        self.options = options
        self.detector = SuccessDetector(
            enter=classifier.threshold,
            hold=options.success_hold_steps,
            guard=options.guard,
            num_envs=num_envs,
        )
        self._potential = np.zeros(num_envs)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._began = np.full(num_envs, time.perf_counter())

    @property
    def needs_first_pictures(self) -> bool:
        """Whether :meth:`begin` needs the probability of the episode's first picture."""
        return self.options.reward_mode == "potential"

    def look(
        self, pictures: list[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return ``(M,)`` probabilities and log-odds of M ``(H, W, 3)`` pictures, in one call."""
        if not pictures:
            return np.zeros(0, np.float32), np.zeros(0, np.float32)
        shapes = {np.shape(picture) for picture in pictures}
        if len(shapes) > 1:
            raise InputError(
                f"the environments gave pictures of the shapes {sorted(shapes)}. Expected one "
                "shape; give all environments the same image size."
            )
        return self.classifier.score(np.stack(pictures))

    def begin(self, mask: NDArray[np.bool_], probability: NDArray[np.float32]) -> None:
        """Start an episode where ``mask`` is True.

        Args:
            mask: ``(num_envs,)`` bool.
            probability: ``(num_envs,)`` of the first pictures; read in potential mode only.
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
        observations: list[Any] | None,
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
            rewards = np.where(claimed, float(options.success_reward), float(options.step_reward))
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
            probability=np.where(mask, probability, np.float32(0)).astype(np.float32),
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


def make_classifier(
    bundle: Bundle | str | Path,
    backend: str,
    device: str,
    precision: str,
    threads: int,
    threshold: float | None,
    reward_mode: RewardMode,
) -> Classifier:
    """Return a classifier; it shares nothing with another, so that closing one is safe.

    Where the classifier's number itself is paid, ``"auto"`` is FP32: INT8 is checked for its
    decisions at the threshold and nowhere else.
    """
    if precision == "auto" and reward_mode != "sparse":
        precision = "fp32"
    return Classifier(
        bundle,
        backend=backend,
        device=device,
        precision=precision,
        threads=threads,
        threshold=threshold,
    )


def with_hold(space: gym.Space[Any], hold: int) -> gym.spaces.Box:
    """Return a one-dimensional Box with one more number at its end, the hold counter.

    Raises:
        ConfigError: another kind of space.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"hold_in_observation was asked for with the observation space {space}. Expected a Box "
            "of one dimension, to which the counter can be appended; set hold_in_observation to "
            "False, or flatten the observation first (gymnasium.wrappers.FlattenObservation)."
        )
    dtype = np.dtype(space.dtype)
    if np.array(hold).astype(dtype) != hold:
        raise ConfigError(
            f"hold_in_observation was asked for with success_hold_steps={hold} and {dtype} "
            "observations, which cannot hold that number. Expected fewer steps, or observations of "
            "a wider dtype."
        )
    return gym.spaces.Box(
        np.append(space.low, 0).astype(dtype),
        np.append(space.high, hold).astype(dtype),
        dtype=dtype.type,
    )


def append_hold(observation: NDArray[Any], counter: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ``(..., D)`` observation with the ``(...)`` counter as its last number."""
    last = np.asarray(counter).astype(observation.dtype)[..., None]
    return np.concatenate([observation, last], axis=-1)
