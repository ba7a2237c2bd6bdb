"""V-trace (Espeholt et al. 2018, section 4.1, eq. 1) as a backward recursion."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vinoreward.correction.arrays import Doubles, Floats, Mask, check_time_major
from vinoreward.correction.importance import truncated_weights


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
        next_values: ``(T, B)``, the learner's value of the true successor of step ``t``; the last
            row is the bootstrap value.
        ends: ``(T, B)``, steps whose next row belongs to another episode; cuts the trace.
        rho: truncation of the ratio in ``delta`` and in the weight; may be infinite.
        c: truncation of the ratio in the trace; at most ``rho``.
        lam: decay of the trace, 0 to 1.

    Raises:
        InputError: the arrays are not ``(T, B)`` of one shape.
    """
    check_time_major(
        rewards=rewards,
        log_rhos=log_rhos,
        discounts=discounts,
        values=values,
        next_values=next_values,
        ends=ends,
    )
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
