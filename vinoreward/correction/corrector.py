"""The corrector plug, the rules for several of them, and their composition."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from vinoreward.correction.batch import Corrected, Estimate, OffPolicyBatch
from vinoreward.correction.importance import effective_sample_size
from vinoreward.errors import ConfigError, OutputError

Role = Literal["target", "policy_gradient"]
Critic = Literal["v", "q"]

_CRITICS: dict[str, str] = {"v": "state values V(s)", "q": "action values Q(s, a)"}


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
    critic: ClassVar[Critic | None] = None
    """Critic it can correct: ``"v"``, ``"q"``, or ``None`` for both. Built-in correctors that need
    ``q_values`` have ``"q"``."""

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


def check_correctors(
    correctors: Iterable[Corrector], critic: Critic | None = None
) -> tuple[Corrector, ...]:
    """Check that the correctors fit together; return them with the ``target`` one first.

    There is one corrector per role, so that a ratio is not applied twice. The target must be
    explicit, if only as :class:`~vinoreward.correction.NoCorrection`: learning off-policy without
    a correction is a decision. The order of the arguments does not matter.

    Args:
        correctors: one of role ``"target"``, at most one of role ``"policy_gradient"``.
        critic: what the learner's critic estimates, if known: ``"v"`` or ``"q"``.

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
        found = ", ".join(str(corrector) for corrector in by_role.values()) or "none at all"
        raise ConfigError(
            f"There is no corrector of role 'target' ({found}); expected one, such as VTrace() "
            "for state values or Retrace() for action values. Use NoCorrection() to learn from "
            "uncorrected returns."
        )
    chain = tuple(by_role[role] for role in ("target", "policy_gradient") if role in by_role)
    if critic is not None:
        _check_critic(chain, critic)
    return chain


def _check_critic(chain: tuple[Corrector, ...], critic: Critic) -> None:
    """Refuse a state-value corrector for an action-value critic, and the reverse."""
    for corrector in chain:
        if corrector.critic not in (None, critic):
            remedy = (
                "Use Retrace(), TreeBackup() or NoCorrection()."
                if critic == "q"
                else "Pass q_values, or use VTrace() or NoCorrection()."
            )
            raise ConfigError(
                f"{corrector} corrects {_CRITICS[corrector.critic]}, but the learner's critic "
                f"estimates {_CRITICS[critic]}. {remedy}"
            )


class Correction:
    """Applies correctors to a batch and returns targets and advantages.

    Args:
        correctors: see :func:`check_correctors`.
        critic: what the learner's critic estimates, to report a mismatch now and not at the first
            batch.

    Raises:
        ConfigError: the correctors do not fit together.
    """

    def __init__(self, correctors: Iterable[Corrector], critic: Critic | None = None) -> None:
        self._chain = check_correctors(correctors, critic)

    @property
    def correctors(self) -> tuple[Corrector, ...]:
        """The correctors in the order of application."""
        return self._chain

    def __repr__(self) -> str:
        return f"Correction([{', '.join(str(corrector) for corrector in self._chain)}])"

    def __call__(self, batch: OffPolicyBatch) -> Corrected:
        """Correct a batch.

        The results are new arrays in the batch's precision; the batch does not change.

        Raises:
            ConfigError: a corrector does not fit the batch's critic, or changes what its role
                may not change.
            InputError: a corrector cannot use the batch's numbers.
            OutputError: a corrector returned another shape, or numbers that are not finite.
        """
        _check_critic(self._chain, "v" if batch.q_values is None else "q")
        ones = np.ones(batch.shape)
        one_step = batch.rewards + batch.discounts * batch.successor_values
        unclipped = np.zeros(batch.shape, dtype=np.bool_)
        estimate = Estimate(one_step, one_step - batch.values, ones, unclipped)
        for corrector in self._chain:
            if corrector.role == "target":
                estimate = _checked(corrector, batch, corrector.correct(batch, estimate))
            else:
                given = Estimate(estimate.targets, estimate.advantages, ones, estimate.clipped)
                weighted = _checked(corrector, batch, corrector.correct(batch, given))
                _check_role(corrector, given, weighted)
                estimate = weighted
        dtype = batch.dtype
        return Corrected(
            targets=estimate.targets.astype(dtype),
            advantages=(estimate.weights * estimate.advantages).astype(dtype),
            weights=estimate.weights.astype(dtype),
            ess=effective_sample_size(batch.log_rhos),
            clipped=float(np.mean(estimate.clipped)),
        )


def _checked(corrector: Corrector, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
    """Check that an estimate has the batch's shape and is finite in its precision."""
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
    return estimate


def _check_role(corrector: Corrector, before: Estimate, after: Estimate) -> None:
    """Refuse a policy-gradient corrector that changes more than the weights."""
    for name in ("targets", "advantages"):
        if not np.array_equal(getattr(before, name), getattr(after, name)):
            raise ConfigError(
                f"{corrector} has the role 'policy_gradient' but changed the {name}; that role "
                "may change only the weights. Set the role 'target', or do not change them."
            )
