"""Importance ratios and multi-step returns, as pure functions of ``(T, B)`` arrays.

:func:`vtrace` is the correction of Espeholt et al. 2018, :func:`lambda_returns` none.

Every function refuses arrays that are not ``(T, B)`` of one shape, with an :class:`InputError`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import InputError

Floats = NDArray[np.floating[Any]]
"""Floating-point array of any precision, time-major ``(T, B)`` unless said otherwise."""
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]

LOG_RATIO_LIMIT = 20.0
"""Upper bound of a log ratio (nats). ``exp(20)`` is 5e8: far beyond what a truncated estimator
uses, and a product of a few such ratios still fits a float64. Ratios may underflow to 0."""


def check_time_major(**arrays: NDArray[Any]) -> None:
    """Raise InputError unless all are NumPy arrays of one shape ``(T, B)``, at least one step."""
    expected: tuple[int, ...] | None = None
    first = ""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"{name} is a {type(array).__name__}; correctors take NumPy arrays: pass "
                f"{name}.detach().cpu().numpy() or numpy.asarray({name})."
            )
        if expected is None:
            expected, first = array.shape, name
            if array.ndim != 2 or 0 in array.shape:
                raise InputError(
                    f"{name} has shape {array.shape}; expected (T, B) with at least one step and "
                    "one trajectory. Time comes first: transpose a (B, T) array, and add an axis "
                    "to a single trajectory."
                )
        elif array.shape != expected:
            raise InputError(
                f"{name} has shape {array.shape}, but {first} has {expected}; all arrays of a "
                "batch are (T, B) of one shape. Pass the values of the steps and of their "
                "successors as two arrays of T rows, not one of T + 1."
            )


def check_finite(name: str, array: Floats, hint: str) -> None:
    """Raise InputError if an array has NaN or infinity; ``hint`` says what to do."""
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(index) for index in np.argwhere(~finite)[0])
        count = int(array.size - np.count_nonzero(finite))
        raise InputError(
            f"{name} has {count} of {array.size} values that are not finite, the first is "
            f"{array[where]} at [t, b] = {list(where)}; expected finite numbers. {hint}"
        )


def log_ratios(log_pi: Floats, log_mu: Floats) -> Doubles:
    """Return ``log rho = log pi - log mu``, ``(T, B)``, at most :data:`LOG_RATIO_LIMIT`.

    A ``log_pi`` of ``-inf`` (the target policy never takes that action) gives a ratio of exactly 0.

    Raises:
        InputError: shapes differ, ``log_mu`` is not finite, or ``log_pi`` is NaN or ``+inf``.
    """
    check_time_major(log_pi=log_pi, log_mu=log_mu)
    check_finite(
        "log_mu",
        log_mu,
        "It is the log-probability of an executed action under the network that chose it: store "
        "it when you sample the action, and drop trajectories of a broken network.",
    )
    never = np.isneginf(log_pi)
    check_finite(
        "log_pi",
        np.where(never, 0.0, log_pi),
        "The learner's network has diverged, or the stored action lies outside its "
        "distribution's support (a tanh-squashed action of exactly 1 or -1).",
    )
    difference = log_pi.astype(np.float64) - log_mu.astype(np.float64)
    return np.minimum(difference, LOG_RATIO_LIMIT)


def truncated_weights(log_rhos: Floats, rho: float) -> Doubles:
    """Return ``min(rho, exp(log_rhos))`` in the shape of ``log_rhos``; ``rho`` may be infinite.

    Truncation trades variance for bias towards the behaviour policy (Espeholt et al. 2018, eq. 3
    gives the policy that is then evaluated).
    """
    return np.minimum(np.exp(log_rhos.astype(np.float64)), rho)


class VTraceReturns(NamedTuple):
    """Value targets, advantages before weighting, and V-trace's weights."""

    targets: Doubles
    """``(T, B)``: ``v_t``."""
    advantages: Doubles
    """``(T, B)``: ``r_t + d_t (lam v_{t+1} + (1 - lam) V'_t) - V_t``."""
    weights: Doubles
    """``(T, B)``: ``min(rho, rho_t)``, the weight of the policy gradient."""


def vtrace(
    *,
    log_rhos: Floats,
    discounts: Floats,
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    ends: Mask,
    rho: float = 1.0,
    c: float = 1.0,
    lam: float = 1.0,
) -> VTraceReturns:
    """Return V-trace's targets and advantages.

    ``v_t = V_t + sum_{k >= t} (prod_{t <= i < k} d_i c_i) delta_k`` with ``c_i = lam min(c,
    rho_i)`` (Remark 2) and ``delta_k = min(rho, rho_k) (r_k + d_k V'_k - V_k)``; the sum stops at
    the end of the episode. ``rho`` decides what is learned (``V^pi`` for infinity; for 1 the value
    of a policy between ``mu`` and ``pi``, eq. 3), ``c`` only how fast.

    On-policy and with ``rho, c >= 1`` the targets are lambda-returns (Remark 1) and the
    advantages generalised advantage estimates. For ``lam = 1`` the advantage is the paper's
    (section 4.2). For smaller ``lam`` the paper's advantage would trust ``v_{t+1}`` more than the
    target does; here it bootstraps from the same mixture, so that
    ``v_t = V_t + min(rho, rho_t) advantage_t`` where ``c = rho``.

    Args:
        log_rhos: ``(T, B)``, ``log pi - log mu`` of the executed actions (nats).
        discounts: ``(T, B)``, ``gamma``, or 0 where the episode terminated.
        rewards: ``(T, B)``.
        values: ``(T, B)``, the learner's ``V(s_t)``.
        next_values: ``(T, B)``, the same at the true successor of step ``t``; the last row is the
            bootstrap value.
        ends: ``(T, B)``, steps whose next row belongs to another episode; cuts the trace.
        rho: truncation of the ratio in ``delta`` and in the weight; may be infinite.
        c: truncation of the ratio in the trace; at most ``rho``.
        lam: decay of the trace, 0 to 1.
    """
    check_time_major(rewards=rewards, log_rhos=log_rhos, discounts=discounts)
    check_time_major(rewards=rewards, values=values, next_values=next_values, ends=ends)
    weights = truncated_weights(log_rhos, rho)
    one_step = rewards + discounts * next_values.astype(np.float64)
    deltas = weights * (one_step - values)
    carried = np.where(ends, 0.0, discounts * lam)
    traces = carried * truncated_weights(log_rhos, c)
    corrections = np.empty_like(deltas)
    # There is no correction beyond the last row: it bootstraps from its next value.
    later = np.zeros(deltas.shape[1])
    following = np.zeros_like(deltas)
    for step in range(len(deltas) - 1, -1, -1):
        following[step] = later
        later = deltas[step] + traces[step] * later
        corrections[step] = later
    # v_{t+1} is V' plus the next row's correction; at an end ``carried`` leaves V' alone.
    advantages = one_step + carried * following - values
    return VTraceReturns(values + corrections, advantages, weights)


def lambda_returns(
    *, rewards: Floats, discounts: Floats, next_values: Floats, ends: Mask, lam: float
) -> Doubles:
    """Return ``G_t = r_t + d_t ((1 - lam) V'_t + lam G_{t+1})``, ``(T, B)``, uncorrected.

    At a truncation and in the last row, ``G_{t+1}`` is ``V'_t``. ``lam = 1`` sums all rewards up to
    the end of the episode or array, as in the n-step target of actor-critic. Arguments as for
    :func:`vtrace`.
    """
    check_time_major(rewards=rewards, discounts=discounts, next_values=next_values, ends=ends)
    followed = np.where(ends, 0.0, lam)
    followed[-1] = 0.0
    returns = np.empty(rewards.shape, dtype=np.float64)
    later = np.zeros(rewards.shape[1])
    for step in range(len(returns) - 1, -1, -1):
        keep = followed[step]
        later = rewards[step] + discounts[step] * ((1 - keep) * next_values[step] + keep * later)
        returns[step] = later
    return returns
