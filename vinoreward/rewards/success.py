"""From probabilities to claimed success and rewards, and the truth in an environment's ``info``."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, OddPictureError
from vinoreward.rewards.frozen import FrozenCheck

RewardMode = Literal["sparse", "probability", "log_odds", "potential"]
TRUTH_KEYS = ("true_success", "original_is_success", "is_success", "success", "succeed")
"""Where environments say whether the task is done; the first that is there counts. A learned
reward moves an environment's own ``is_success`` to ``original_is_success``."""

OnOdd = Literal["withhold", "warn", "raise", "ignore"]
"""What becomes of a picture that the bundle's guard finds odd."""
WITHHELD = -20.0
"""Log-odds that such a picture pays at most: as of a sure failure, so that no policy seeks it."""

Guard = Callable[[Any, float], bool]


class SuccessDetector:
    """Claims success after enough frames in a row, for several environments at once.

    A frame counts when its probability is at least ``enter``, or at least ``exit`` where the frame
    before it counted too (hysteresis), and when the guard agrees. Success is claimed on every frame
    that is at least the ``hold``-th counting one in a row. Comparisons are in float32, the
    precision a classifier gives.

    Args:
        enter: probability at which frames start to count, 0 to 1.
        exit: probability below which they stop counting; ``None`` for the same as ``enter``.
        hold: counting frames in a row that make a success, at least 1.
        guard: ``guard(observation, probability) -> bool``; a frame it refuses does not count. It
            is asked only about frames that would count.
        num_envs: environments, each with its own state.

    Raises:
        ConfigError: a value that cannot work.
    """

    def __init__(
        self,
        enter: float,
        exit: float | None = None,
        hold: int = 1,
        guard: Guard | None = None,
        num_envs: int = 1,
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
        if guard is not None and not callable(guard):
            raise ConfigError(
                f"guard is {guard!r}. Expected a function guard(observation, probability) -> bool."
            )
        self.enter = float(enter)
        self.exit = float(leave)
        self.hold = int(hold)
        self.guard = guard
        self.num_envs = int(num_envs)
        self._counter = np.zeros(self.num_envs, dtype=np.int64)

    @property
    def counter(self) -> NDArray[np.int64]:
        """Counting frames in a row up to now, at most ``hold``: ``(num_envs,)``, a copy."""
        return self._counter.copy()

    def update(
        self,
        probabilities: NDArray[np.floating[Any]],
        mask: NDArray[np.bool_] | None = None,
        observations: Sequence[Any] | None = None,
        withheld: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Take the next frame of each environment.

        Args:
            probabilities: ``(num_envs,)`` from 0 to 1.
            mask: ``(num_envs,)`` bool, the environments with a new frame; ``None`` for all. The
                others keep their state.
            observations: one per environment, for the guard.
            withheld: ``(num_envs,)`` bool, frames that do not count whatever their probability;
                ``None`` for none.

        Returns:
            ``(num_envs,)`` bool: success is claimed with this frame.

        Raises:
            InputError: a wrong shape, a value that is no probability, or no observations for the
                guard.
        """
        values = np.asarray(probabilities, dtype=np.float32)
        new = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask)
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
        limit: Any = np.float32(self.enter)
        if self.exit < self.enter:
            limit = np.where(self._counter > 0, np.float32(self.exit), limit)
        counts = new & (values >= limit)
        if withheld is not None:
            counts &= ~withheld
        if self.guard is not None and counts.any():
            counts &= self._guarded(self.guard, values, counts, observations)
        # Capped, so that the counter fits a bounded observation; the decision needs no more.
        following = np.where(counts, np.minimum(self._counter + 1, self.hold), 0)
        self._counter = np.where(new, following, self._counter)
        return np.asarray(new & (self._counter >= self.hold))

    def reset(self, indices: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Start a new episode in these environments (numbers or a bool mask), or in all."""
        if indices is None:
            self._counter[:] = 0
        else:
            chosen = np.asarray(indices)
            self._counter[chosen if chosen.dtype == np.bool_ else chosen.astype(np.int64)] = 0

    def _guarded(
        self,
        guard: Guard,
        values: NDArray[np.float32],
        asked: NDArray[np.bool_],
        observations: Sequence[Any] | None,
    ) -> NDArray[np.bool_]:
        if observations is None or len(observations) != self.num_envs:
            raise InputError(
                f"the success detector has a guard and was given "
                f"{'no' if observations is None else len(observations)} observations. Expected "
                f"{self.num_envs}, one per environment; pass observations to update()."
            )
        allowed = np.zeros(self.num_envs, np.bool_)
        for index in np.flatnonzero(asked).tolist():
            allowed[index] = bool(guard(observations[index], float(values[index])))
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
    guard: Guard | None = None
    terminate_on_success: bool = True
    gamma: float = 0.99
    hold_in_observation: bool = False
    on_ood: OnOdd = "withhold"
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
        modes = get_args(RewardMode)
        if self.reward_mode not in modes:
            raise ConfigError(
                f"reward_mode is {self.reward_mode!r}. Expected one of {', '.join(modes)}."
            )
        if self.on_ood not in get_args(OnOdd):
            raise ConfigError(
                f"on_ood is {self.on_ood!r}. Expected one of {', '.join(get_args(OnOdd))}."
            )
        flags = ("success_replaces_env_reward", "terminate_on_success", "hold_in_observation")
        for name in (*flags, "frozen_check"):
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
    odd: NDArray[np.float32] | None = None
    """How strange the picture was, odd above 1; None without a guard."""

    def episode(self, index: int) -> dict[str, float | int]:
        """Return one environment's ``{"r", "l", "t"}``, as recorders of episodes write it."""
        return {
            "r": round(float(self.returns[index]), 6),
            "l": int(self.lengths[index]),
            "t": round(float(self.seconds[index]), 6),
        }


class RewardCore:
    """Turns the scores of several environments into rewards; each environment has its own state.

    After a step call :meth:`transition`, then :meth:`begin` where episodes start.
    """

    def __init__(
        self,
        options: RewardOptions,
        threshold: float,
        num_envs: int = 1,
        exit_threshold: float | None = None,
    ) -> None:
        self.options = options
        self.detector = SuccessDetector(
            threshold, exit_threshold, options.success_hold_steps, options.guard, num_envs
        )
        self.frozen: FrozenCheck | None = None
        """Finds images that are older than the environment's state; None: nothing looks for it."""
        self._stale = False
        self._warned = False
        self._potential = np.zeros(num_envs)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._began = np.full(num_envs, time.perf_counter())

    @property
    def needs_first_pictures(self) -> bool:
        """Whether :meth:`begin` needs the probability of the episode's first picture."""
        return self.options.reward_mode == "potential"

    def begin(self, mask: NDArray[np.bool_], probability: NDArray[np.float32]) -> None:
        """Start an episode where ``mask`` is True.

        ``probability`` of the first pictures is read in potential mode only; both ``(num_envs,)``.
        """
        self.detector.reset(mask)
        if self.frozen is not None:
            self.frozen.begin(mask)
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
        odd: NDArray[np.float32] | None = None,
        images: NDArray[np.uint8] | None = None,
        states: NDArray[np.float64] | None = None,
    ) -> Scores:
        """Score the transitions of the environments where ``mask`` is True.

        Arrays are ``(num_envs,)``; rewards and terminations are the environment's own. The guard
        reads ``observations``, one per environment. ``odd`` is how strange the pictures are. The
        frozen-camera check reads ``images``, those of the masked environments as the network got
        them, and ``states``, the numbers of all observations ``(num_envs, D)``.

        OddPictureError: one is, and ``on_ood`` is ``"raise"``.
        """
        options, seen = self.options, probability
        if self.frozen is not None and images is not None and states is not None:
            claims = mask & (probability >= np.float32(self.detector.exit))
            stale = self.frozen.odd(mask, images, states, claims)
            self._stale = bool((stale > 1.0).any())
            odd = stale if odd is None else np.maximum(odd, stale)
        withheld = self.withheld(mask, odd)
        if withheld is not None:
            probability = np.where(withheld, np.float32(0), probability)
            log_odds = np.where(withheld, np.minimum(log_odds, WITHHELD), log_odds)
        claimed = self.detector.update(probability, mask, observations, withheld)
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
        own = np.zeros(len(rewards))
        if options.env_reward_weight:  # else it may be anything, NaN too
            own = options.env_reward_weight * np.asarray(env_rewards, np.float64)
            if not np.isfinite(own[mask]).all():
                raise InputError(
                    f"the environment gave the rewards {own[mask] / options.env_reward_weight}. "
                    "Expected finite numbers (None is none), as env_reward_weight is "
                    f"{options.env_reward_weight:g}; set that to 0, or fix the environment."
                )
        if options.success_replaces_env_reward:
            own = np.where(claimed, 0.0, own)
        rewards = rewards + own
        rewards = np.where(mask, rewards, 0.0)
        self._returns += rewards
        self._lengths += mask
        return Scores(
            rewards=rewards,
            claimed=claimed,
            terminated=ended & mask,
            probability=np.where(mask, seen, np.float32(0)).astype(np.float32, copy=False),
            returns=self._returns.copy(),
            lengths=self._lengths.copy(),
            seconds=time.perf_counter() - self._began,
            odd=None if odd is None else np.where(mask, odd, np.float32(0)),
        )

    def withheld(
        self, mask: NDArray[np.bool_], odd: NDArray[np.float32] | None
    ) -> NDArray[np.bool_] | None:
        """Return where an odd picture must not count, ``(num_envs,)``; None: nowhere.

        Warns once, or raises OddPictureError, if the options say so.
        """
        on_ood = self.options.on_ood
        if odd is None or on_ood == "ignore":
            return None
        strange = mask & (odd > 1.0)
        if not strange.any():
            return None
        if on_ood == "withhold":
            return np.asarray(strange)
        told = (
            "a picture shows less change than the observation: in whole or in part it is of an "
            "earlier step. Expected the camera's present one; look at the camera, or give "
            "frozen_check=False if observations change that no picture shows"
            if self._stale
            else "a picture is unlike those that the classifier was trained on: "
            f"{odd.max():.2g} times the limit of its guard. Expected the camera, light and place "
            "of the training; look at the picture, and capture and finetune again if it is as it "
            "should be"
        )
        if on_ood == "raise":
            self.detector.reset(np.asarray(strange))  # as a frame that does not count
            raise OddPictureError(f"{told}, or give on_ood='withhold'.")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{told}. Its claims count all the same.", UserWarning, stacklevel=4)
        return None


def shaping(
    before: NDArray[np.float64], after: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Return ``gamma * phi(s') - phi(s)``, which leaves the optimal policy as it was.

    Ng, Harada & Russell 1999, "Policy invariance under reward transformations", ICML, theorem 1.
    """
    return np.asarray(gamma * after - before)


def claim_of(info: Mapping[str, Any]) -> bool | None:
    """Return what a classifier (or our oracle) claims; None where neither judges.

    ``is_success`` alone is the environment's own: the truth, not a claim about it.
    """
    judged = "reward_prob" in info or "true_success" in info
    return bool(info["is_success"]) if judged and "is_success" in info else None


def as_truth(value: Any, said: str) -> bool:
    """Return a flag from what an environment gives for it: a flag, a number, an array or a tensor.

    ``said`` begins the sentence of the ConfigError for anything but a single true, false, 1 or 0.
    """
    # A torch tensor's numbers: it may be on a GPU, or of a type that NumPy does not know.
    array = np.asarray(value.tolist() if hasattr(value, "detach") else value)
    if array.size != 1 or array.dtype.kind not in "buif" or array.item() not in (0, 1):
        raise ConfigError(
            f"{said} {value!r}. Expected true or false, or a single 1 or 0, for the truth about "
            "success; name another key with --truth-key, or a function of the environment that "
            "returns True or False with --truth (both where the command has them)."
        )
    return bool(array.item())


class Truth:
    """Reads from ``info`` whether the task is truly done.

    ``key`` names it; None takes the first of :data:`TRUTH_KEYS` that is there, and keeps it.
    ``is_success`` is the environment's own, also where a learned reward claims under that name.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        """The key in use; None until one is found."""
        self._named = key is not None

    def __call__(self, info: Mapping[str, Any], *, last: bool = True) -> bool | None:
        """Return the truth, None where a step's ``info`` does not tell.

        ConfigError: a named key is missing in an episode's ``last`` step, or is no single number.
        """
        if self.key is None:
            claimed = claim_of(info) is not None
            keys = (key for key in TRUTH_KEYS if not (claimed and key == "is_success"))
            self.key = next((key for key in keys if key in info), None)
        elif self.key == "is_success" and {"reward_prob", "original_is_success"} & set(info):
            self.key = "original_is_success"
        if self.key is None or self.key not in info:
            if self._named and last:
                raise ConfigError(
                    f"the environment gave an info without {self.key!r} (it has {_keys(info)}). "
                    "Expected the truth about success there; name one of these with --truth-key, "
                    "or a function of the environment with --truth."
                )
            return None
        return as_truth(info[self.key], f"the environment gives, as info[{self.key!r}],")

    def missing(self, info: Mapping[str, Any]) -> str:
        """Say that nothing is known of the truth, and what to do."""
        return (
            f"true success is not known: the environment's info has none of {', '.join(TRUTH_KEYS)}"
            f" (it has {_keys(info)}). If it tells under another name, add --truth-key; if not, "
            "add --truth file.py:function, a function of the environment that returns True or "
            "False."
        )


def _keys(info: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, info))) or "nothing"
