"""What goes into a corrector and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.correction.arrays import Doubles, Floats, Mask, check_finite, check_time_major
from vinoreward.correction.importance import log_ratios
from vinoreward.errors import ConfigError, InputError


@dataclass(frozen=True, eq=False)
class OffPolicyBatch:
    """``B`` pieces of trajectory of ``T`` steps each, with what the learner thinks of them.

    All arrays are time-major ``(T, B)`` and of one shape; the reals are float32 or float64 and
    are computed with in float64. They are not copied and not written to.

    A state-value learner leaves ``q_values`` out and gets targets for ``V(s_t)``. A learner of
    action values gives ``q_values`` and gets targets for ``Q(s_t, a_t)``; its ``values`` and
    ``next_values`` are then expectations of Q under the target policy, best from its target
    network (for SAC the soft ones, ``E_pi[Q - alpha log pi]``; the equations stay the same).

    Raises:
        InputError: a shape, a dtype or a number that cannot be; the message names the array.
        ConfigError: ``gamma`` is not within 0 and 1.
    """

    log_pi: Floats
    """Log-probability (nats) of the executed action under the target policy, the learner's
    present one. ``-inf`` is allowed and says that it never takes that action."""
    log_mu: Floats
    """The same under the policy that really acted, as the actor stored it. Finite: whatever was
    done had a probability."""
    rewards: Floats
    terminated: Mask
    """The episode ended in a terminal state after this step: nothing follows, no bootstrap."""
    truncated: Mask
    """The episode was cut off after this step (a time limit): bootstraps from ``next_values``."""
    values: Floats
    """``V(s_t)``, or ``E_pi Q(s_t, .)``, by the learner (never by the compressed network)."""
    next_values: Floats
    """The same of the true successor of step ``t``: at an end that of the final observation, not
    that of the next episode's first one. Ignored where ``terminated``."""
    gamma: float
    """Discount per step, 0 to 1."""
    q_values: Floats | None = None
    """``Q(s_t, a_t)`` of the executed action, for learners of action values."""

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
                    f"{name} has dtype {dtype}; expected bool. Give the flags of the environment's "
                    "step as they are, not 1 - flag."
                )
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma is {self.gamma}; expected a discount from 0 to 1.")
        log_ratios(self.log_pi, self.log_mu)
        check_finite("rewards", self.rewards, "Look at the environment that gave this reward.")
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
        """Precision of the answers: float32, or float64 where one of the arrays is."""
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
        """``gamma``, and 0 where the episode terminated."""
        return np.where(self.terminated, 0.0, float(self.gamma))

    @property
    def ends(self) -> Mask:
        """Steps whose next row is of another episode."""
        return self.terminated | self.truncated

    @property
    def successor_values(self) -> Doubles:
        """``next_values``, and 0 where the episode terminated (there they may be anything)."""
        return np.where(self.terminated, 0.0, self.next_values.astype(np.float64))


@dataclass(frozen=True, eq=False)
class Estimate:
    """What correctors hand to each other; :class:`Correction` starts it and finishes it.

    All arrays are ``(T, B)``.
    """

    targets: Floats
    """Targets of ``V(s_t)``, or of ``Q(s_t, a_t)`` where the batch has ``q_values``."""
    advantages: Floats
    """Advantages of the executed actions **before** any weight."""
    weights: Floats
    """What ``grad log pi(a_t|s_t) * advantage`` is to be multiplied with."""
    clipped: Mask
    """Steps whose ratio was truncated."""


@dataclass(frozen=True, eq=False)
class Corrected:
    """What a learner needs: detached targets, advantages, and how far the data were off."""

    targets: Floats
    """``(T, B)``, regression targets of ``V(s_t)`` or ``Q(s_t, a_t)``."""
    advantages: Floats
    """``(T, B)``, what ``grad log pi(a_t|s_t)`` is multiplied with. The importance weight is in
    it already: multiply with nothing else."""
    weights: Floats
    """``(T, B)``, the weight that is in ``advantages``, for logs and for other losses."""
    ess: float
    """Effective sample size of the untruncated ratios as a share of all steps, 0 to 1."""
    clipped: float
    """Share of the steps whose ratio was truncated, 0 to 1."""
