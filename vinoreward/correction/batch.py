"""Inputs and outputs of correctors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.correction.arrays import Doubles, Floats, Mask, check_finite, check_time_major
from vinoreward.correction.importance import log_ratios
from vinoreward.errors import ConfigError, InputError


@dataclass(frozen=True, eq=False)
class OffPolicyBatch:
    """``B`` trajectory segments of ``T`` steps each, with the learner's outputs for them.

    All arrays are time-major ``(T, B)`` and of one shape. Reals are float32 or float64, and all
    computation is in float64. The arrays are neither copied nor written to.

    A state-value learner leaves ``q_values`` out and gets targets for ``V(s_t)``. An action-value
    learner passes ``q_values`` and gets targets for ``Q(s_t, a_t)``; its ``values`` and
    ``next_values`` are then expectations of Q under the target policy, best from its target
    network (for SAC the soft ones, ``E_pi[Q - alpha log pi]``; the equations are the same).

    Raises:
        InputError: an invalid shape, dtype or number; the message names the array.
        ConfigError: ``gamma`` is not between 0 and 1.
    """

    log_pi: Floats
    """Log-probability (nats) of the executed action under the target policy, which is the
    learner's current one. ``-inf`` is allowed: it never takes that action."""
    log_mu: Floats
    """The same under the policy that acted, as the actor stored it. Must be finite, because the
    action was executed."""
    rewards: Floats
    terminated: Mask
    """The episode ended in a terminal state after this step: no bootstrap."""
    truncated: Mask
    """The episode was cut off after this step (a time limit): bootstraps from ``next_values``."""
    values: Floats
    """``V(s_t)``, or ``E_pi Q(s_t, .)``, by the learner (never by the compressed network)."""
    next_values: Floats
    """The same for the true successor of step ``t``: at the end of an episode the final
    observation, not the next episode's first one. Ignored where ``terminated``."""
    gamma: float
    """Discount per step, 0 to 1."""
    q_values: Floats | None = None
    """``Q(s_t, a_t)`` of the executed action, for action-value learners."""

    def __post_init__(self) -> None:
        reals: dict[str, Floats] = {
            "log_pi": self.log_pi,
            "log_mu": self.log_mu,
            "rewards": self.rewards,
            "values": self.values,
            "next_values": self.next_values,
        }
        if self.q_values is not None:
            reals["q_values"] = self.q_values
        check_time_major(**reals, terminated=self.terminated, truncated=self.truncated)
        for name, array in reals.items():
            if not np.issubdtype(array.dtype, np.floating):
                raise InputError(
                    f"{name} has dtype {array.dtype}; expected float32 or float64. Convert it "
                    "with .astype(numpy.float32)."
                )
        for name in ("terminated", "truncated"):
            dtype = getattr(self, name).dtype
            if dtype != np.bool_:
                raise InputError(
                    f"{name} has dtype {dtype}; expected bool. Pass the flags as the environment's "
                    "step returns them, not 1 - flag."
                )
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma is {self.gamma}; expected a discount from 0 to 1.")
        log_ratios(self.log_pi, self.log_mu)
        check_finite("rewards", self.rewards, "Check the environment that gave this reward.")
        network = "The learner's network has diverged: lower its learning rate or clip gradients."
        check_finite("values", self.values, network)
        check_finite("next_values", self.successor_values, network)
        if self.q_values is not None:
            check_finite("q_values", self.q_values, network)

    @property
    def shape(self) -> tuple[int, int]:
        """``(T, B)``."""
        steps, batch = self.rewards.shape
        return steps, batch

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the outputs: float64 if one of the arrays is float64, else float32."""
        arrays = [self.log_pi, self.log_mu, self.rewards, self.values, self.next_values]
        if self.q_values is not None:
            arrays.append(self.q_values)
        return np.result_type(np.float32, *arrays)

    @property
    def log_rhos(self) -> Doubles:
        """``log pi - log mu`` of every step, bounded above."""
        return log_ratios(self.log_pi, self.log_mu)

    @property
    def discounts(self) -> Doubles:
        """``gamma``; 0 where the episode terminated."""
        return np.where(self.terminated, 0.0, float(self.gamma))

    @property
    def ends(self) -> Mask:
        """Steps whose next row belongs to another episode."""
        return self.terminated | self.truncated

    @property
    def successor_values(self) -> Doubles:
        """``next_values``; 0 where the episode terminated."""
        return np.where(self.terminated, 0.0, self.next_values.astype(np.float64))


@dataclass(frozen=True, eq=False)
class Estimate:
    """Intermediate result of correctors, all ``(T, B)``; :class:`Correction` creates it."""

    targets: Floats
    """Targets of ``V(s_t)``, or of ``Q(s_t, a_t)`` where the batch has ``q_values``."""
    advantages: Floats
    """Advantages of the executed actions **before** weighting."""
    weights: Floats
    """Factor for ``grad log pi(a_t|s_t) * advantage``."""
    clipped: Mask
    """Steps with a truncated ratio."""


@dataclass(frozen=True, eq=False)
class Corrected:
    """A learner's inputs: detached targets, advantages, and statistics of the ratios."""

    targets: Floats
    """``(T, B)``, regression targets of ``V(s_t)`` or ``Q(s_t, a_t)``."""
    advantages: Floats
    """``(T, B)``, factor for ``grad log pi(a_t|s_t)``. Includes the importance weight: do not
    apply it again."""
    weights: Floats
    """``(T, B)``, the weight in ``advantages``, for logs and other losses."""
    ess: float
    """Effective sample size of the untruncated ratios as a fraction of all steps, 0 to 1."""
    clipped: float
    """Fraction of steps with a truncated ratio, 0 to 1."""
