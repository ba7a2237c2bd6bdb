"""Importance ratios, truncated weights, and effective sample size."""

from __future__ import annotations

import numpy as np

from vinoreward.correction.arrays import Doubles, Floats, check_finite, check_time_major
from vinoreward.errors import InputError

LOG_RATIO_LIMIT = 20.0
"""Upper bound of a log ratio (nats). ``exp(20)`` is 5e8: far beyond what a truncated estimator
uses, and a product of a few such ratios still fits a float64. There is no lower bound: a ratio may
underflow to 0."""


def log_ratios(log_pi: Floats, log_mu: Floats) -> Doubles:
    """Return ``log rho = log pi - log mu``, at most :data:`LOG_RATIO_LIMIT`.

    Args:
        log_pi: ``(T, B)``, log-probability of the executed action under the target policy;
            ``-inf`` (it never takes that action) gives a ratio of exactly 0.
        log_mu: ``(T, B)``, the same under the policy that acted.

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


def effective_sample_size(log_rhos: Floats) -> float:
    """Return Kish's effective sample size as a fraction of the steps, 0 to 1.

    ``(sum w)^2 / (n sum w^2)`` of the untruncated ratios, because truncation would hide how far
    the behaviour policy is from the target policy. 1 on-policy, 1 / n if one step outweighs the
    rest, 0 if the target policy would take none of the actions.

    Args:
        log_rhos: log ratios of any shape, at least one.

    Raises:
        InputError: ``log_rhos`` is empty.
    """
    if log_rhos.size == 0:
        raise InputError("log_rhos is empty; the effective sample size needs at least one step.")
    highest = float(log_rhos.max())
    if highest == -np.inf:
        return 0.0
    # Scaling all weights does not change the result; with a maximum of 1 nothing overflows.
    weights = np.exp(log_rhos.astype(np.float64) - highest)
    return float(np.square(weights.sum()) / (weights.size * np.square(weights).sum()))


def mixed(weights: Floats, share: float) -> Doubles:
    """Return ``(1 - share) + share weights``: from no correction (0) to the full one (1)."""
    return (1.0 - share) + share * weights.astype(np.float64)
