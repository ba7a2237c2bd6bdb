"""When success is claimed and what may be paid, on NumPy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SkipValidation
from pydantic.dataclasses import dataclass as pydantic_dataclass

from vinoreward.arrays import Array, Arrays
from vinoreward.errors import ConfigError, InputError
from vinoreward.strict_model import STRICT, Flag, Number, StrictModel

RewardMode = Literal["sparse", "probability", "log_odds", "potential", "progress"]
SHAPED = ("potential", "progress")
"""Modes that add a potential's difference, which leaves the optimal policy as it was."""
OodAction = Literal["withhold", "warn", "raise", "ignore"]
"""What to do with out-of-distribution images."""
WITHHELD = {"probability": 0.0, "log_odds": -20.0}
"""Most paid for such an image, as of a sure failure: no policy seeks it."""

SuccessFilter = Callable[[Any, float], bool]


def check_thresholds(enter: float, exit: float | None) -> tuple[float, float]:
    """Return the thresholds as numbers; ``exit`` None is ``enter``. ConfigError if they clash."""
    leave = enter if exit is None else exit
    if not 0.0 <= leave <= enter <= 1.0:  # NaN fails too
        raise ConfigError(
            f"the success threshold is {enter} and the exit threshold {leave}. Expected "
            "probabilities from 0 to 1, and an exit threshold of at most the threshold: success "
            "cannot be harder to keep than to enter."
        )
    return float(enter), float(leave)


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
        success_filter: ``f(observation, probability) -> bool``, asked about images that would
            count; one that it refuses does not.
        num_envs: environments, each with its own state.
        arrays: library and device of what :meth:`update` takes. A filter needs NumPy.

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
        self.enter, self.exit = check_thresholds(enter, exit)
        if isinstance(hold, bool) or not isinstance(hold, (int, np.integer)) or hold < 1:
            raise ConfigError(f"hold is {hold!r}. Expected a whole number of at least 1.")
        self.hold = int(hold)
        self.success_filter = success_filter
        self.num_envs = num_envs
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
        """Take the next image of each environment; return where success is claimed with it.

        Args:
            probabilities: ``(num_envs,)`` from 0 to 1. On a device NaN counts as no success.
            mask: ``(num_envs,)`` bool, the environments with a new image; ``None`` for all. The
                others keep their state.
            observations: one per environment, for the success filter.
            ood_mask: ``(num_envs,)`` bool, images that do not count; ``None`` for none.

        Raises:
            InputError: a wrong shape, no probabilities, or no observations for the filter.
        """
        arrays, xp = self._arrays, self._arrays.xp
        values = arrays.cast(probabilities, "float32")
        new = arrays.full(self.num_envs, True, "bool") if mask is None else mask
        if arrays.on_host:
            new = np.asarray(new)
            self._check(values, new)
        limit = self.enter
        if self.exit < self.enter:
            leave = arrays.full(1, self.exit, "float32")
            limit = xp.where(self._counter > 0, leave, arrays.full(1, self.enter, "float32"))
        counts = new & (values >= limit)
        if ood_mask is not None:
            counts = counts & ~ood_mask
        if self.success_filter is not None and counts.any():
            counts = self._filtered(self.success_filter, values, counts, observations)
        # Capped, so that the counter fits a bounded observation; the decision needs no more.
        longer = xp.clip(self._counter + 1, None, self.hold) * counts
        self._counter = xp.where(new, longer, self._counter)
        return new & (self._counter >= self.hold)

    def reset(self, mask: Array | None = None) -> None:
        """Start episodes where ``mask``, ``(num_envs,)`` bool, is True; None: everywhere."""
        self._counter = self._counter * (0 if mask is None else ~mask)

    def _check(self, values: NDArray[np.float32], mask: NDArray[Any]) -> None:
        shape = (self.num_envs,)
        fits = values.shape == mask.shape == shape and mask.dtype == np.bool_
        scored = values[mask] if fits else values
        if not fits or not ((scored >= 0.0) & (scored <= 1.0)).all():  # NaN fails too
            raise InputError(
                f"the success detector was given {scored.tolist()} and a {mask.dtype} mask of "
                f"{mask.shape}. Expected {shape} probabilities from 0 to 1, which "
                "Classifier.probability gives, and a bool for each."
            )

    def _filtered(
        self,
        success_filter: SuccessFilter,
        values: NDArray[np.float32],
        counts: NDArray[np.bool_],
        observations: Sequence[Any] | None,
    ) -> NDArray[np.bool_]:
        """Return which of the images that would count are not refused."""
        if observations is None or len(observations) != self.num_envs:
            raise InputError(
                f"the success detector has a filter and was given {observations!r:.80}. Expected "
                f"{self.num_envs} observations; pass them to update()."
            )
        allowed = np.zeros(self.num_envs, np.bool_)
        for index in np.flatnonzero(counts).tolist():
            allowed[index] = bool(success_filter(observations[index], float(values[index])))
        return allowed


@pydantic_dataclass(frozen=True, config=STRICT)
class RewardOptions(StrictModel):
    """The options of a learned reward, checked; see :class:`~vinoreward.LearnedReward`."""

    _error: ClassVar[type[Exception]] = ConfigError

    success_reward: Number = 1.0
    step_reward: Number = 0.0
    env_reward_weight: Number = 0.0
    success_replaces_env_reward: Flag = False
    reward_mode: RewardMode = "sparse"
    success_threshold: Number | None = None
    success_exit_threshold: Number | None = None
    success_hold_steps: SkipValidation[int] = 1  # the success detector checks it
    success_filter: SuccessFilter | None = None
    terminate_on_success: Flag = True
    gamma: Annotated[Number, Field(ge=0, le=1)] = 0.99
    hold_in_observation: Flag = False
    on_ood: OodAction = "withhold"
    frozen_check: Flag = True

    @property
    def host_only(self) -> bool:
        """Whether a step needs numbers on the host: for a filter, an observation, or a warning."""
        asked = self.success_filter is not None or self.hold_in_observation
        return asked or self.on_ood in ("warn", "raise")


@dataclass(frozen=True)
class Scores:
    """Result of a step: arrays ``(num_envs,)``, zero or False where not scored.

    ``rewards``, ``returns`` (their sum in the running episode, this step included) and ``seconds``
    (since it began) are float64, ``lengths`` (its scored steps) int64. ``claimed`` success and
    ``terminated``, by the environment or a claim, are bool. ``probability``, ``ood_score`` (out of
    distribution above 1; None without an OOD detector) and ``progress`` (from 0 to 1; None of a
    classifier without) are float32.
    """

    rewards: Array
    claimed: Array
    terminated: Array
    probability: Array
    returns: Array
    lengths: Array
    seconds: Array
    ood_score: Array | None = None
    progress: Array | None = None

    def episode(self, index: int) -> dict[str, float | int]:
        """Return one environment's ``{"r", "l", "t"}``, as recorders of episodes write it."""
        return {
            "r": round(float(self.returns[index]), 6),
            "l": int(self.lengths[index]),
            "t": round(float(self.seconds[index]), 6),
        }


def withhold(values: Array, ood_mask: Array | None, kind: str) -> Array:
    """Return probabilities or log-odds, ``kind``, with at most :data:`WITHHELD` where masked."""
    if ood_mask is None:
        return values
    xp, most = Arrays.like(values).xp, WITHHELD[kind]
    least = xp.nan_to_num(values, nan=most, posinf=most, neginf=most)
    return xp.where(ood_mask, xp.clip(least, None, most), values)
