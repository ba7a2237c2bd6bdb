"""The corrector plug, its inputs and outputs, and the rules for several correctors."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.correction.returns import (
    Doubles,
    Floats,
    Mask,
    check_finite,
    check_time_major,
    log_ratios,
)
from vinoreward_actors.policies.distributions import effective_sample_size

Role = Literal["target", "policy_gradient"]


@dataclass(frozen=True, eq=False)
class OffPolicyBatch:
    """``B`` trajectory segments of ``T`` steps each, with the learner's outputs for them.

    All arrays are time-major ``(T, B)`` and of one shape. Reals are float32 or float64, and all
    computation is in float64. The arrays are neither copied nor written to.

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
    """``V(s_t)`` by the learner (never by the compressed network)."""
    next_values: Floats
    """The same for the true successor of step ``t``: at the end of an episode the final
    observation, not the next episode's first one. Ignored where ``terminated``."""
    gamma: float
    """Discount per step, 0 to 1."""

    def __post_init__(self) -> None:
        reals = self._reals
        check_time_major(**reals, terminated=self.terminated, truncated=self.truncated)
        for name, array in reals.items():
            if not np.issubdtype(array.dtype, np.floating):
                raise InputError(
                    f"{name} has dtype {array.dtype}; expected float32 or float64. Convert it "
                    "with .astype(numpy.float32)."
                )
        for name, flags in (("terminated", self.terminated), ("truncated", self.truncated)):
            if flags.dtype != np.bool_:
                raise InputError(
                    f"{name} has dtype {flags.dtype}; expected bool. Pass the flags as the "
                    "environment's step returns them, not 1 - flag."
                )
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma is {self.gamma}; expected a discount from 0 to 1.")
        log_ratios(self.log_pi, self.log_mu)
        check_finite("rewards", self.rewards, "Check the environment that gave this reward.")
        network = "The learner's network has diverged: lower its learning rate or clip gradients."
        check_finite("values", self.values, network)
        check_finite("next_values", self.successor_values, network)

    @property
    def _reals(self) -> dict[str, Floats]:
        names = ("log_pi", "log_mu", "rewards", "values", "next_values")
        return {name: getattr(self, name) for name in names}

    @property
    def shape(self) -> tuple[int, int]:
        """``(T, B)``."""
        steps, batch = self.rewards.shape
        return steps, batch

    @property
    def return_arguments(self) -> dict[str, Any]:
        """The arrays that every multi-step return needs, by their names there."""
        return {
            "rewards": self.rewards,
            "discounts": self.discounts,
            "next_values": self.successor_values,
            "ends": self.ends,
        }

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the outputs: float64 if one of the arrays is float64, else float32."""
        return np.result_type(np.float32, *self._reals.values())

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
    """Targets of ``V(s_t)``."""
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
    """``(T, B)``, regression targets of ``V(s_t)``."""
    advantages: Floats
    """``(T, B)``, factor for ``grad log pi(a_t|s_t)``. Includes the importance weight: do not
    apply it again."""
    weights: Floats
    """``(T, B)``, the weight in ``advantages``, for logs and other losses."""
    ess: float
    """Effective sample size of the untruncated ratios as a fraction of all steps, 0 to 1."""
    clipped: float
    """Fraction of steps with a truncated ratio, 0 to 1."""


class Corrector(abc.ABC):
    """One off-policy correction. Subclass it, set ``role`` and write :meth:`correct`::

        @dataclass(frozen=True)
        class ClippedAdvantage(Corrector):
            role = "policy_gradient"
            limit: float = 2.0

            def correct(self, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
                return replace(estimate, weights=np.exp(np.clip(batch.log_rhos, -1, self.limit)))

    Correctors have plain parameters and no state: they are called once per batch, and the same
    batch gives the same result.
    """

    role: ClassVar[Role]
    """``"target"`` computes targets and advantages; ``"policy_gradient"`` only the weight."""

    @abc.abstractmethod
    def correct(self, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
        """Return the estimate with this correction.

        Args:
            batch: checked arrays ``(T, B)``.
            estimate: the result so far. For role ``"target"`` the one-step targets, their
                advantages, and weights of 1. For ``"policy_gradient"`` the targets and advantages
                of the target corrector, which must not change, and weights of 1 even if the target
                corrector set its own. So the ratio cannot be applied twice.

        Returns:
            Estimate: new finite ``(T, B)`` arrays; use ``dataclasses.replace``.
        """


def check_correctors(correctors: Iterable[Corrector]) -> tuple[Corrector, ...]:
    """Check that the correctors fit together; return them with the ``target`` one first.

    There is one corrector per role, so that a ratio is not applied twice. The target must be
    explicit, if only as :class:`~vinoreward_actors.correction.NoCorrection`: learning off-policy
    without a correction is a decision. The order of the arguments does not matter.

    Args:
        correctors: one of role ``"target"``, at most one of role ``"policy_gradient"``.

    Raises:
        ConfigError: the correctors do not fit; the message says why and what to do.
    """
    by_role: dict[str, Corrector] = {}
    for corrector in correctors:
        if not isinstance(corrector, Corrector):
            name, remedy = repr(corrector), ""
            if isinstance(corrector, type):
                name, remedy = corrector.__name__, f" Call it: {corrector.__name__}()."
            raise ConfigError(
                f"{name} is not a corrector; expected objects such as VTrace() or "
                f"ImportanceSampling().{remedy}"
            )
        role = getattr(corrector, "role", None)
        if role not in ("target", "policy_gradient"):
            raise ConfigError(
                f"{type(corrector).__name__} has the role {role!r}; expected 'target' or "
                "'policy_gradient'. Set it as a class attribute."
            )
        if role in by_role:
            raise ConfigError(
                f"{by_role[role]} and {corrector} both have the role {role!r}; expected one "
                "corrector per role, because two would apply the ratio twice. Leave one out."
            )
        by_role[role] = corrector
    if "target" not in by_role:
        others = ", ".join(map(str, by_role.values())) or "none at all"
        raise ConfigError(
            f"There is no corrector of role 'target' ({others}); expected one, such as "
            "VTrace(), or NoCorrection() to learn from uncorrected returns."
        )
    return tuple(by_role[role] for role in ("target", "policy_gradient") if role in by_role)


class Correction:
    """Applies correctors to a batch and returns targets and advantages.

    Args:
        correctors: see :func:`check_correctors`.

    Raises:
        ConfigError: the correctors do not fit together.
    """

    def __init__(self, correctors: Iterable[Corrector]) -> None:
        self.correctors = check_correctors(correctors)
        """In the order of application."""

    def __repr__(self) -> str:
        return f"Correction([{', '.join(map(str, self.correctors))}])"

    def __call__(self, batch: OffPolicyBatch) -> Corrected:
        """Correct a batch.

        The results are new arrays in the batch's precision; the batch does not change.

        Raises:
            ConfigError: a corrector changes what its role may not change.
            InputError: a corrector cannot use the batch's numbers.
            OutputError: a corrector returned another shape, or numbers that are not finite.
        """
        ones = np.ones(batch.shape)
        one_step = batch.rewards + batch.discounts * batch.successor_values
        unclipped = np.zeros(batch.shape, dtype=np.bool_)
        estimate = Estimate(one_step, one_step - batch.values, ones, unclipped)
        for corrector in self.correctors:
            before = replace(estimate, weights=ones)
            estimate = corrector.correct(batch, before)
            _check_estimate(corrector, before, estimate, batch)
        dtype = batch.dtype
        return Corrected(
            targets=estimate.targets.astype(dtype),
            advantages=(estimate.weights * estimate.advantages).astype(dtype),
            weights=estimate.weights.astype(dtype),
            ess=effective_sample_size(batch.log_rhos),
            clipped=float(np.mean(estimate.clipped)),
        )


def _check_estimate(
    corrector: Corrector, before: Estimate, estimate: Estimate, batch: OffPolicyBatch
) -> None:
    """Check an estimate's shape, that it is finite in the batch's precision, and what changed."""
    for name in ("targets", "advantages", "weights", "clipped"):
        array = getattr(estimate, name)
        if np.shape(array) != batch.shape:
            raise OutputError(
                f"{corrector} returned {name} of shape {np.shape(array)}; expected (T, B) = "
                f"{batch.shape}. Return one number per step."
            )
    largest = float(np.finfo(batch.dtype).max)
    for name in ("targets", "advantages", "weights"):
        # Written so that NaN fails, too.
        if not np.all(np.abs(getattr(estimate, name)) <= largest):
            raise OutputError(
                f"{corrector} returned {name} that are not finite; expected finite numbers. "
                "Products of untruncated ratios overflow where the behaviour policy is far from "
                "the learner's: truncate them (rho, c), or bound the policy lag."
            )
    for name in ("targets", "advantages") if corrector.role == "policy_gradient" else ():
        if not np.array_equal(getattr(before, name), getattr(estimate, name)):
            raise ConfigError(
                f"{corrector} has the role 'policy_gradient' but changed the {name}; that role "
                "may change only the weights. Set the role 'target', or do not change them."
            )
