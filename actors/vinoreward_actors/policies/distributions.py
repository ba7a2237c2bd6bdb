"""Distributions: from a head's outputs to actions and their probabilities, in NumPy.

Exploration is part of the distribution: an action's probability is that under the policy that
acted, noise before the tanh included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.spec import PolicySpec

Outputs = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LOG_STD = (-20.0, 2.0)
"""The usual limits of a Gaussian head's log standard deviations."""
LOWEST_LOG = -20.0
"""Lower bound of log probabilities: 2e-9 is as good as zero."""
EDGE = 1.0 - 1e-6
"""Largest absolute value of an action for the inverse of tanh."""


@dataclass(frozen=True)
class Exploration:
    """How an actor deviates from its network's best action."""

    epsilon: float = 0.0
    """Probability of a uniformly random action; for ``q`` heads."""
    sigma: float = 0.0
    """Standard deviation of Gaussian noise before the tanh; for ``tanh`` heads, and the unit of
    differences between their actions."""
    greedy: bool = False
    """Take the most probable action; for evaluation."""

    def __post_init__(self) -> None:
        if not (0.0 <= self.epsilon <= 1.0 and 0.0 <= self.sigma < 100.0):
            raise ConfigError(
                f"exploration has epsilon={self.epsilon} and sigma={self.sigma}. Expected epsilon "
                "from 0 to 1 and sigma of at least 0."
            )


@dataclass(frozen=True)
class Acted:
    """Sampled actions."""

    actions: npt.NDArray[np.generic]
    """(N,) int64, or (N, A) float32 in [-1, 1]."""
    log_mu: Floats
    """(N,) natural logarithm of each action's probability or density; 0 if deterministic."""


def log_softmax(logits: Outputs) -> Doubles:
    """Return log probabilities (N, K) for logits (N, K)."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def gaussian(spec: PolicySpec, outputs: Outputs, sigma: float) -> tuple[Doubles, Doubles]:
    """Return means and log standard deviations (N, A) of continuous actions before the tanh.

    ``sigma`` is that of the noise on a ``tanh`` head.
    """
    values = outputs.astype(np.float64)
    if spec.head == "tanh":
        return values, np.full_like(values, math.log(max(sigma, 1e-9)))
    mean, log_std = values[:, : spec.actions], values[:, spec.actions :]
    return mean, np.clip(log_std, *LOG_STD)


def log_probabilities(spec: PolicySpec, outputs: Outputs, epsilon: float = 0.0) -> Doubles:
    """Return (N, actions) log probabilities of discrete actions, at least -20.

    ``epsilon`` is that of an epsilon-greedy policy on a ``q`` head; ties go to the first action.
    """
    if spec.head == "logits":
        return np.maximum(log_softmax(outputs), LOWEST_LOG)
    greedy = np.zeros(outputs.shape)
    greedy[np.arange(len(outputs)), outputs.argmax(1)] = 1.0 - epsilon
    return np.maximum(np.log(np.maximum(greedy + epsilon / spec.actions, 1e-300)), LOWEST_LOG)


def act(
    spec: PolicySpec,
    outputs: Outputs,
    random: np.random.Generator,
    exploration: Exploration = Exploration(),
) -> Acted:
    """Sample actions from a head's outputs (N, K)."""
    count = len(outputs)
    if spec.discrete:
        if exploration.greedy:
            return Acted(outputs.argmax(1).astype(np.int64), np.zeros(count, dtype=np.float32))
        logs = log_probabilities(spec, outputs, exploration.epsilon)
        # The argmax of logits plus Gumbel noise is a sample from their softmax.
        noisy = logs + random.gumbel(size=logs.shape)
        if spec.head == "q":
            noisy[logs <= LOWEST_LOG] = -np.inf
        actions = noisy.argmax(1).astype(np.int64)
        return Acted(actions, logs[np.arange(count), actions].astype(np.float32))
    mean, log_std = gaussian(spec, outputs, exploration.sigma)
    if exploration.greedy or (spec.head == "tanh" and exploration.sigma == 0.0):
        return Acted(np.tanh(mean).astype(np.float32), np.zeros(count, dtype=np.float32))
    before = mean + np.exp(log_std) * random.standard_normal(mean.shape)
    actions = np.clip(np.tanh(before), -EDGE, EDGE).astype(np.float32)
    log_mu = _squashed_log_density(actions, mean, log_std)
    return Acted(actions, log_mu.astype(np.float32))


def _squashed_log_density(actions: Outputs, mean: Doubles, log_std: Doubles) -> Doubles:
    """Return the log density (N,) of tanh-squashed Gaussian actions (N, A)."""
    bounded = np.clip(actions.astype(np.float64), -EDGE, EDGE)
    # Far out, an action's rounding to float32 would decide: there it is as good as impossible.
    apart = np.maximum(-0.5 * ((np.arctanh(bounded) - mean) / np.exp(log_std)) ** 2, LOWEST_LOG)
    log_slope = np.log1p(-bounded) + np.log1p(bounded)
    return np.asarray((apart - log_std - 0.5 * math.log(2 * math.pi) - log_slope).sum(1))


def log_prob(
    spec: PolicySpec,
    outputs: Outputs,
    actions: npt.NDArray[np.generic],
    exploration: Exploration = Exploration(),
) -> Doubles:
    """Return (N,) log probabilities (densities) of actions under outputs (N, K) and exploration.

    ``actions`` are (N,) integers, or (N, A) in [-1, 1].

    Raises:
        ConfigError: a deterministic policy.
    """
    if exploration.greedy or (spec.head == "tanh" and exploration.sigma == 0.0):
        raise ConfigError(
            "a policy without exploration has no log probability. Expected an epsilon, a sigma or "
            "a stochastic head."
        )
    if spec.discrete:
        logs = log_probabilities(spec, outputs, exploration.epsilon)
        return np.asarray(logs[np.arange(len(outputs)), np.asarray(actions, dtype=np.int64)])
    mean, log_std = gaussian(spec, outputs, exploration.sigma)
    return _squashed_log_density(np.asarray(actions, dtype=np.float64), mean, log_std)


def entropy(
    spec: PolicySpec, outputs: Outputs, exploration: Exploration = Exploration()
) -> Doubles:
    """Return the entropy (N,) in nats; of the Gaussian before the tanh for continuous actions."""
    if spec.discrete:
        logs = log_probabilities(spec, outputs, exploration.epsilon)
        return np.asarray(-(np.exp(logs) * logs).sum(1))
    _, log_std = gaussian(spec, outputs, exploration.sigma)
    return np.asarray((log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(1))


def kl(
    spec: PolicySpec,
    outputs_p: Outputs,
    outputs_q: Outputs,
    exploration: Exploration = Exploration(),
) -> Doubles:
    """Return KL(p || q) in nats for each row (N,); applying tanh to both does not change it.

    The exploration is that of both. ``q`` heads without epsilon are compared as softmax of their
    values, since two greedy policies have no finite divergence; ``tanh`` heads need a sigma.
    """
    if spec.discrete:
        if spec.head == "q" and exploration.epsilon == 0.0:
            logs_p, logs_q = log_softmax(outputs_p), log_softmax(outputs_q)
        else:
            logs_p = log_probabilities(spec, outputs_p, exploration.epsilon)
            logs_q = log_probabilities(spec, outputs_q, exploration.epsilon)
        logs_p, logs_q = np.maximum(logs_p, LOWEST_LOG), np.maximum(logs_q, LOWEST_LOG)
        rows: Doubles = np.exp(logs_p) * (logs_p - logs_q)
        return np.asarray(np.maximum(rows.sum(1), 0.0))
    if spec.head == "tanh" and exploration.sigma == 0.0:
        raise ConfigError(
            "two policies without noise have no finite divergence. Expected a sigma: the unit of "
            "action differences."
        )
    mean_p, log_p = gaussian(spec, outputs_p, exploration.sigma)
    mean_q, log_q = gaussian(spec, outputs_q, exploration.sigma)
    ratio = np.exp(2.0 * (log_p - log_q))
    apart = (mean_p - mean_q) ** 2 * np.exp(-2.0 * log_q)
    rows = ratio + apart - 1.0 - 2.0 * (log_p - log_q)
    return np.asarray(np.maximum(0.5 * rows.sum(1), 0.0))


def effective_sample_size(log_ratios: Outputs) -> float:
    """Return Kish's effective sample size as a fraction of the rows, 0 to 1.

    ``(sum w)^2 / (n sum w^2)`` of importance weights ``w = exp(log_ratios)``, of any shape. 1
    on-policy, 1 / n if one row outweighs the rest, 0 if the target policy would take none of the
    actions.

    Raises:
        InputError: there are no ratios.
    """
    if log_ratios.size == 0:
        raise InputError("log_rhos is empty; the effective sample size needs at least one step.")
    highest = float(log_ratios.max())
    if highest == -np.inf:
        return 0.0
    # Scaling all weights does not change the result; with a maximum of 1 nothing overflows.
    weights = np.exp(log_ratios.astype(np.float64) - highest)
    return float(np.square(weights.sum()) / (weights.size * np.square(weights).sum()))
