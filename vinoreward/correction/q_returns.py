"""Multi-step returns: the Munos form for action values, lambda-returns and n-step returns.

The Munos form (the general operator of Munos et al. 2016), for one trajectory::

    G_t = r_t + d_t (E_pi Q(s'_t, .) + c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1})))

one recursion covers a family of methods; only the trace coefficients ``c_t`` differ (their
table 1):

=================================  =============================================================
:func:`retrace_coefficients`       ``lam min(1, rho_t)``: safe for any ``mu``, low variance
:func:`tree_backup_coefficients`   ``lam pi(a_t|s_t)``: needs no ``mu``; short traces even on-policy
:func:`importance_coefficients`    ``min(limit, rho_t)``: unbiased without a limit, high variance
:func:`q_lambda_coefficients`      ``lam``: long traces; diverges where ``mu`` is far from ``pi``
=================================  =============================================================

Watkins' Q(lambda) is Tree-backup with a greedy target policy (``log_pi`` 0 or ``-inf``).
"""

from __future__ import annotations

import numpy as np

from vinoreward.correction.arrays import Doubles, Floats, Mask, check_time_major
from vinoreward.correction.importance import truncated_weights
from vinoreward.errors import ConfigError, InputError

# Rounding of a float32 log-softmax; a value further above 0 is a density.
_LOG_PROBABILITY_TOLERANCE = 1e-5


def retrace_coefficients(log_rhos: Floats, lam: float) -> Doubles:
    """Return ``lam min(1, rho_t)`` of the action of each row (Munos et al. 2016)."""
    return lam * truncated_weights(log_rhos, 1.0)


def tree_backup_coefficients(log_pi: Floats, lam: float) -> Doubles:
    """Return ``lam pi(a_t|s_t)`` of the action of each row (Precup et al. 2000).

    Raises:
        InputError: ``log_pi`` is above 0: a density of continuous actions is no probability.
    """
    highest = float(log_pi.max())
    if highest > _LOG_PROBABILITY_TOLERANCE:
        raise InputError(
            f"log_pi reaches {highest:.3g}; Tree-backup multiplies with probabilities, whose "
            "logarithms are at most 0. It cannot use a density of continuous actions: use Retrace."
        )
    return lam * np.minimum(np.exp(log_pi.astype(np.float64)), 1.0)


def importance_coefficients(log_rhos: Floats, limit: float = np.inf) -> Doubles:
    """Return ``min(limit, rho_t)``: per-decision importance sampling (Precup et al. 2000)."""
    return truncated_weights(log_rhos, limit)


def q_lambda_coefficients(shape: tuple[int, int], lam: float) -> Doubles:
    """Return ``lam`` for every row (Harutyunyan et al. 2016).

    Converges where ``lam < (1 - gamma) / (gamma max_s sum_a |pi(a|s) - mu(a|s)|)``.
    """
    return np.full(shape, lam, dtype=np.float64)


def munos_returns(
    *,
    rewards: Floats,
    discounts: Floats,
    q_values: Floats,
    next_values: Floats,
    coefficients: Floats,
    ends: Mask,
) -> Doubles:
    """Return the targets ``G_t`` of ``Q(s_t, a_t)``, ``(T, B)``.

    Args:
        rewards: ``(T, B)``.
        discounts: ``(T, B)``, ``gamma``, or 0 where the episode terminated.
        q_values: ``(T, B)``, ``Q(s_t, a_t)`` of the executed action.
        next_values: ``(T, B)``, ``E_pi Q(s'_t, .)`` at the true successor of step ``t``.
        coefficients: ``(T, B)``, ``c_t`` of the action of row ``t``. Step ``t`` uses row
            ``t + 1``, so the first row and rows after an end are not read.
        ends: ``(T, B)``, steps whose next row belongs to another episode.

    Raises:
        InputError: the arrays are not ``(T, B)`` of one shape.
    """
    check_time_major(
        rewards=rewards,
        discounts=discounts,
        q_values=q_values,
        next_values=next_values,
        coefficients=coefficients,
        ends=ends,
    )
    one_step = rewards + discounts * next_values.astype(np.float64)
    carried = np.where(ends, 0.0, discounts)
    returns = np.empty_like(one_step)
    later = np.zeros(one_step.shape[1])
    for step in range(len(one_step) - 1, -1, -1):
        returns[step] = one_step[step] + carried[step] * later
        later = coefficients[step] * (returns[step] - q_values[step])
    return returns


def lambda_returns(
    *, rewards: Floats, discounts: Floats, next_values: Floats, ends: Mask, lam: float
) -> Doubles:
    """Return ``G_t = r_t + d_t ((1 - lam) V'_t + lam G_{t+1})``, ``(T, B)``, uncorrected.

    At a truncation and in the last row, ``G_{t+1}`` is ``V'_t``. ``lam = 1`` sums all rewards up to
    the end of the episode or array, as in the n-step target of actor-critic. Arguments as for
    :func:`munos_returns`.

    Raises:
        InputError: the arrays are not ``(T, B)`` of one shape.
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


def n_step_returns(
    *, rewards: Floats, discounts: Floats, next_values: Floats, ends: Mask, steps: int
) -> Doubles:
    """Return uncorrected ``steps``-step returns, ``(T, B)``.

    ``r_t + d_t r_{t+1} + ... + (d_t ... d_{t+n-1}) V'_{t+n-1}``, shorter where the episode or the
    array ends. Arguments as for :func:`munos_returns`.

    Raises:
        InputError: the arrays are not ``(T, B)`` of one shape.
        ConfigError: ``steps`` is below 1.
    """
    check_time_major(rewards=rewards, discounts=discounts, next_values=next_values, ends=ends)
    if steps < 1:
        raise ConfigError(f"steps is {steps}; an n-step return needs at least 1.")
    one_step = rewards + discounts * next_values.astype(np.float64)
    returns = one_step.copy()
    # Each round extends every return by one step: k steps from t are the reward of t and the
    # k - 1 steps from t + 1. Beyond the length of the array nothing changes.
    for _ in range(min(steps, len(returns)) - 1):
        longer = rewards[:-1] + discounts[:-1] * returns[1:]
        returns[:-1] = np.where(ends[:-1], one_step[:-1], longer)
    return returns
