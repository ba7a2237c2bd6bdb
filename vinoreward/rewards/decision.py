"""From probabilities to claimed successes and rewards, on NumPy arrays or torch tensors."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.errors import ConfigError, InputError, OutOfDistributionError

RewardMode = Literal["sparse", "probability", "log_odds", "potential"]
OodAction = Literal["withhold", "warn", "raise", "ignore"]
"""What to do with out-of-distribution images."""
WITHHELD = -20.0
"""Highest log-odds paid for such an image, as of a sure failure: no policy seeks it."""

SuccessFilter = Callable[[Any, float], bool]


class SuccessDetector:
    """Claims success after enough images in a row, for several environments at once.

    An image counts when its probability is at least ``enter``, or at least ``exit`` where the image
    before it counted too (hysteresis), and when the filter agrees. Success is claimed on every
    image that is at least the ``hold``-th counting one in a row. Comparisons are in float32, the
    precision a classifier gives.

    Args:
        enter: probability at which images start to count, 0 to 1.
        exit: probability below which they stop counting; ``None`` for the same as ``enter``.
        hold: counting images in a row that make a success, at least 1.
        success_filter: ``f(observation, probability) -> bool``; an image it refuses does not count.
            It is asked only about images that would count.
        num_envs: environments, each with its own state.
        arrays: library and device of the state and of what :meth:`update` takes. A filter needs
            NumPy.

    Raises:
        ConfigError: a value that cannot work.
    """

    def __init__(
        self,
        enter: float,
        exit: float | None = None,
        hold: int = 1,
        success_filter: SuccessFilter | None = None,
        num_envs: int = 1,
        arrays: Arrays = Arrays(),  # noqa: B008  (a tuple, which nobody can change)
    ) -> None:
        leave = enter if exit is None else exit
        # Written so that NaN fails too.
        if not (0.0 <= leave <= enter <= 1.0):
            raise ConfigError(
                f"the success detector was given enter={enter} and exit={exit}. Expected "
                "0 <= exit <= enter <= 1; success cannot be easier to enter than to keep."
            )
        for name, value in (("hold", hold), ("num_envs", num_envs)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"{name} is {value!r}. Expected a whole number of at least 1.")
        if success_filter is not None and not callable(success_filter):
            raise ConfigError(
                f"success_filter is {success_filter!r}. Expected a function "
                "f(observation, probability) -> bool."
            )
        self.enter = float(enter)
        self.exit = float(leave)
        self.hold = int(hold)
        self.success_filter = success_filter
        self.num_envs = int(num_envs)
        self._arrays = arrays
        self._counter = arrays.full(self.num_envs, 0, "int64")

    @property
    def counter(self) -> Array:
        """Counting images in a row up to now, at most ``hold``: ``(num_envs,)`` int64, a copy."""
        return self._counter + 0

    def update(
        self,
        probabilities: Array,
        mask: Array | None = None,
        observations: Sequence[Any] | None = None,
        ood_mask: Array | None = None,
    ) -> Array:
        """Take the next image of each environment.

        Args:
            probabilities: ``(num_envs,)`` from 0 to 1. On a device NaN counts as no success.
            mask: ``(num_envs,)`` bool, the environments with a new image; ``None`` for all. The
                others keep their state.
            observations: one per environment, for the success filter.
            ood_mask: ``(num_envs,)`` bool, images that do not count whatever their probability;
                ``None`` for none.

        Returns:
            ``(num_envs,)`` bool: success is claimed with this image.

        Raises:
            InputError: a wrong shape, a value that is no probability, or no observations for the
                success filter.
        """
        arrays, xp = self._arrays, self._arrays.xp
        values = arrays.cast(probabilities, "float32")
        new = arrays.full(self.num_envs, True, "bool") if mask is None else mask
        if arrays.on_host:
            new = self._checked(values, new)
        limit = self.enter
        if self.exit < self.enter:
            leave = arrays.full(1, self.exit, "float32")
            limit = xp.where(self._counter > 0, leave, arrays.full(1, self.enter, "float32"))
        counts = new & (values >= limit)
        if ood_mask is not None:
            counts = counts & ~ood_mask
        if self.success_filter is not None and counts.any():
            counts = counts & self._filtered(self.success_filter, values, counts, observations)
        # Capped, so that the counter fits a bounded observation; the decision needs no more.
        longer = xp.clip(self._counter + 1, None, self.hold) * counts
        self._counter = xp.where(new, longer, self._counter)
        return new & (self._counter >= self.hold)

    def reset(self, indices: Sequence[int] | Array | None = None) -> None:
        """Start a new episode in these environments (numbers or a bool mask), or in all."""
        if indices is None:
            self._counter = self._counter * 0
            return
        chosen: Any = indices
        if self._arrays.on_host:
            chosen = np.asarray(indices)
            if chosen.dtype != np.bool_:
                chosen = np.isin(np.arange(self.num_envs), chosen.astype(np.int64))
        self._counter = self._counter * ~chosen

    def _checked(self, values: Array, mask: Array) -> NDArray[np.bool_]:
        """Return the mask; InputError for other shapes or what is no probability."""
        new = np.asarray(mask)
        if values.shape != (self.num_envs,) or new.shape != (self.num_envs,):
            raise InputError(
                f"the success detector was given {values.shape} probabilities and a mask of "
                f"{new.shape}. Expected ({self.num_envs},), one per environment."
            )
        if new.dtype != np.bool_:
            raise InputError(f"the mask is {new.dtype}. Expected bool, one per environment.")
        scored = values[new]
        # Written so that NaN fails too.
        if not ((scored >= 0.0) & (scored <= 1.0)).all():
            raise InputError(
                f"the success detector was given {scored.tolist()}. Expected probabilities from 0 "
                "to 1; use Classifier.probability, not log_odds."
            )
        return new

    def _filtered(
        self,
        success_filter: SuccessFilter,
        values: NDArray[np.float32],
        asked: NDArray[np.bool_],
        observations: Sequence[Any] | None,
    ) -> NDArray[np.bool_]:
        if observations is None or len(observations) != self.num_envs:
            raise InputError(
                f"the success detector has a filter and was given "
                f"{'no' if observations is None else len(observations)} observations. Expected "
                f"{self.num_envs}, one per environment; pass observations to update()."
            )
        allowed = np.zeros(self.num_envs, np.bool_)
        for index in np.flatnonzero(asked).tolist():
            allowed[index] = bool(success_filter(observations[index], float(values[index])))
        return allowed


@dataclass(frozen=True)
class RewardOptions:
    """The options of a learned reward, checked; see :class:`~vinoreward.LearnedReward`."""

    success_reward: float = 1.0
    step_reward: float = 0.0
    env_reward_weight: float = 0.0
    success_replaces_env_reward: bool = False
    reward_mode: RewardMode = "sparse"
    success_hold_steps: int = 1
    success_filter: SuccessFilter | None = None
    terminate_on_success: bool = True
    gamma: float = 0.99
    hold_in_observation: bool = False
    on_ood: OodAction = "withhold"
    frozen_check: bool = True

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
        for name, kind in (("reward_mode", RewardMode), ("on_ood", OodAction)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}. Expected one of "
                    f"{', '.join(get_args(kind))}."
                )
        flags = ("success_replaces_env_reward", "terminate_on_success", "hold_in_observation")
        for name in (*flags, "frozen_check"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}. Expected true or false.")

    @property
    def host_only(self) -> bool:
        """Whether a step needs numbers on the host: for a filter, an observation, or a warning."""
        asked = self.success_filter is not None or self.hold_in_observation
        return asked or self.on_ood in ("warn", "raise")


@dataclass(frozen=True)
class Scores:
    """Result of a step: arrays ``(num_envs,)``, zero or False where not scored."""

    rewards: Array
    """float64."""
    claimed: Array
    """bool: success is claimed."""
    terminated: Array
    """bool: the environment's own termination, or a claimed success that terminates."""
    probability: Array
    """float32."""
    returns: Array
    """float64: sum of the rewards of the running episode, this step included."""
    lengths: Array
    """int64: its scored steps."""
    seconds: Array
    """float64: since it began."""
    ood_score: Array | None = None
    """float32: how unlike the training images it is, out of distribution above 1; None without an
    OOD detector."""

    def episode(self, index: int) -> dict[str, float | int]:
        """Return one environment's ``{"r", "l", "t"}``, as recorders of episodes write it."""
        return {
            "r": round(float(self.returns[index]), 6),
            "l": int(self.lengths[index]),
            "t": round(float(self.seconds[index]), 6),
        }


class Decision:
    """Turns probabilities of several environments into rewards; each has its own state.

    Call :meth:`decide` after a step, then :meth:`reset` where episodes begin.

    Args:
        options: of the rewards.
        threshold: probability from which images count.
        num_envs: environments.
        exit_threshold: probability that keeps them counting; None is ``threshold``.
        arrays: library and device of all arrays.
    """

    def __init__(
        self,
        options: RewardOptions,
        threshold: float,
        num_envs: int = 1,
        exit_threshold: float | None = None,
        arrays: Arrays = Arrays(),  # noqa: B008  (a tuple, which nobody can change)
    ) -> None:
        self.options = options
        self.detector = SuccessDetector(
            threshold,
            exit_threshold,
            options.success_hold_steps,
            options.success_filter,
            num_envs,
            arrays,
        )
        self._arrays = arrays
        self._warned = False
        self._zeros = arrays.full(num_envs, 0.0, "float64")
        self._potential = self._returns = self._zeros
        self._lengths = arrays.full(num_envs, 0, "int64")
        self._began = self._zeros + time.perf_counter()

    @property
    def needs_first_images(self) -> bool:
        """Whether :meth:`reset` needs the probability of an episode's first image."""
        return self.options.reward_mode == "potential"

    def reset(self, mask: Array, probability: Array | None = None) -> None:
        """Start an episode where ``mask`` is True.

        ``probability`` of the first images, ``(num_envs,)``, is the potential to start from; None
        is 0.
        """
        where = self._arrays.xp.where
        self.detector.reset(mask)
        first = self._zeros if probability is None else self._arrays.cast(probability, "float64")
        self._potential = where(mask, first, self._potential)
        self._returns = where(mask, 0.0, self._returns)
        self._lengths = where(mask, 0, self._lengths)
        self._began = where(mask, time.perf_counter(), self._began)

    def decide(
        self,
        mask: Array,
        probability: Array,
        log_odds: Array,
        env_rewards: Array,
        terminated: Array,
        *,
        ood_score: Array | None = None,
        stale: bool = False,
        observations: Sequence[Any] | None = None,
    ) -> Scores:
        """Pay for the transitions of the environments where ``mask`` is True.

        Args:
            mask: and all other arrays: ``(num_envs,)``.
            probability: float32, and ``log_odds`` of the same.
            env_rewards: the environment's own; ``terminated`` likewise.
            ood_score: how unlike the training images an image is.
            stale: whether the frozen-camera check found one, for the message.
            observations: one per environment, for the success filter.

        Raises:
            InputError: the environment's reward is needed and not finite.
            OutOfDistributionError: an image is out of distribution, and ``on_ood`` is ``"raise"``.
        """
        options, where, cast = self.options, self._arrays.xp.where, self._arrays.cast
        seen = probability
        ood_mask = self.ood_mask(mask, ood_score, stale=stale)
        if not self._arrays.on_host:  # NaN raises on the host
            broken = self._arrays.xp.isnan(probability)
            ood_mask = broken if ood_mask is None else ood_mask | broken
            least: Any = WITHHELD
            log_odds = self._arrays.xp.nan_to_num(log_odds, nan=least, posinf=least, neginf=least)
        if ood_mask is not None:
            probability = where(ood_mask, 0.0, probability)
            log_odds = where(ood_mask, self._arrays.xp.clip(log_odds, None, WITHHELD), log_odds)
        claimed = self.detector.update(probability, mask, observations, ood_mask)
        ended = cast(terminated, "bool")
        if options.terminate_on_success:
            ended = ended | claimed
        if options.reward_mode == "probability":
            rewards = cast(probability, "float64")
        elif options.reward_mode == "log_odds":
            rewards = cast(log_odds, "float64")
        else:
            rewards = where(claimed, options.success_reward, self._zeros + options.step_reward)
        if options.reward_mode == "potential":
            # An absorbing state has potential 0, else the optimal policy may change; a truncated
            # episode has not ended, its last state keeps its potential.
            following = where(ended, 0.0, cast(probability, "float64"))
            rewards = rewards + shaping(self._potential, following, options.gamma)
            self._potential = where(mask, following, self._potential)
        rewards = where(mask, rewards + self._own_rewards(env_rewards, mask, claimed), 0.0)
        self._returns = self._returns + rewards
        self._lengths = self._lengths + mask
        return Scores(
            rewards=rewards,
            claimed=claimed,
            terminated=ended & mask,
            probability=where(mask, cast(seen, "float32"), 0.0),
            returns=self._returns,
            lengths=self._lengths,
            seconds=time.perf_counter() - self._began,
            ood_score=None if ood_score is None else where(mask, ood_score, 0.0),
        )

    def ood_mask(
        self, mask: Array, ood_score: Array | None, *, stale: bool = False
    ) -> Array | None:
        """Return which images must not count, ``(num_envs,)`` bool; None: all may.

        Warns once, or raises OutOfDistributionError, if the options say so.
        """
        on_ood = self.options.on_ood
        if ood_score is None or on_ood == "ignore":
            return None
        out = mask & (ood_score > 1.0)
        if self._arrays.on_host and not out.any():
            return None
        if on_ood == "withhold":
            return out
        found = (
            "an image shows less change than the observation: in whole or in part it is of an "
            "earlier step. Expected the camera's present one; look at the camera, or give "
            "frozen_check=False if observations change that no image shows"
            if stale
            else "an image is unlike those that the classifier was trained on: "
            f"{ood_score.max():.2g} times the limit of its OOD detector. Expected the camera, "
            "light and place of the training; look at the image, and capture and finetune again if "
            "it is as it should be"
        )
        if on_ood == "raise":
            self.detector.reset(out)  # as an image that does not count
            raise OutOfDistributionError(f"{found}, or give on_ood='withhold'.")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{found}. Its claims count all the same.", UserWarning, stacklevel=4)
        return None

    def _own_rewards(self, env_rewards: Array, mask: Array, claimed: Array) -> Array:
        """Return what the environment's own rewards add, ``(num_envs,)`` float64."""
        weight, where = self.options.env_reward_weight, self._arrays.xp.where
        if not weight:  # else it may be anything, NaN too
            return 0.0
        own = weight * self._arrays.cast(env_rewards, "float64")
        if self._arrays.on_host and not np.isfinite(own[mask]).all():
            raise InputError(
                f"the environment gave the rewards {own[mask] / weight}. Expected finite numbers "
                f"(None is none), as env_reward_weight is {weight:g}; set that to 0, or fix the "
                "environment."
            )
        return where(claimed, 0.0, own) if self.options.success_replaces_env_reward else own


def shaping(before: Array, after: Array, gamma: float) -> Array:
    """Return ``gamma * phi(s') - phi(s)``, which leaves the optimal policy as it was.

    Ng, Harada & Russell 1999, "Policy invariance under reward transformations", ICML, theorem 1.
    """
    return gamma * after - before
