"""Noise on bounded actions, after the tanh, and the density of the executed actions.

The sum of action and noise is clipped to [-1, 1], so -1 and 1 have a probability of their own. Log
values are densities in units of actions between -1 and 1, and probabilities at the two ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError

Doubles = npt.NDArray[np.float64]

LOWEST_LOG = -20.0
"""Lower bound of log probabilities: 2e-9 is as good as zero."""
_erfc = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True)
class ActionNoise:
    """Gaussian noise for each step; with ``theta``, Ornstein-Uhlenbeck noise.

    Ornstein-Uhlenbeck noise changes per step by ``theta * (mean - noise) * dt`` plus Gaussian noise
    of ``sigma * sqrt(dt)``, and starts at ``start`` in every episode.

    Attributes:
        mean: one number per action or one for all, in units of [-1, 1], like the others.
        sigma: standard deviations, likewise; at least 0.
        theta: rate of return to the mean; None: independent noise in each step.
        dt: length of a step; above 0.
        start: likewise one number or one per action.

    Raises:
        ConfigError: invalid numbers.
    """

    mean: tuple[float, ...]
    sigma: tuple[float, ...]
    theta: float | None = None
    dt: float = 1.0
    start: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        numbers = [*self.mean, *self.sigma, *self.start, self.theta or 0.0, self.dt]
        if not all(map(math.isfinite, numbers)) or min(self.sigma) < 0 or self.dt <= 0:
            raise ConfigError(
                f"the action noise is {self}. Expected finite numbers, sigma of at least 0 and dt "
                "above 0."
            )

    def begin(self, shape: tuple[int, int]) -> Doubles:
        """Return the noise (N, A) before the first step of an episode."""
        return np.broadcast_to(np.asarray(self.start, dtype=np.float64), shape).copy()

    def centers(self, before: Doubles) -> Doubles:
        """Return the means (N, A) of the next noise, after ``before`` (N, A)."""
        mean = np.broadcast_to(np.asarray(self.mean, dtype=np.float64), before.shape)
        return mean if self.theta is None else before + self.theta * (mean - before) * self.dt

    @property
    def spread(self) -> Doubles:
        """Standard deviations (A,) or (1,) of the next noise around :meth:`centers`."""
        sigma = np.asarray(self.sigma, dtype=np.float64)
        return sigma if self.theta is None else sigma * math.sqrt(self.dt)

    @property
    def unit(self) -> float:
        """Root mean square over actions of the noise's stationary standard deviation."""
        kept = 0.0 if self.theta is None else 1.0 - self.theta * self.dt
        variance = self.spread**2 / (1.0 - kept**2 if kept**2 < 1.0 else 1.0)
        return float(np.sqrt(variance.mean()))


def log_density(actions: Doubles, centers: Doubles, spread: Doubles) -> Doubles:
    """Return log densities (N,) of Gaussians clipped to [-1, 1]; deterministic actions count as 0.

    Args:
        actions: (N, A) in [-1, 1].
        centers: (N, A).
        spread: (A,) or (1,) standard deviations.
    """
    sigma = np.maximum(spread, 1e-9)
    scaled = (actions - centers) / sigma
    logs = -0.5 * scaled**2 - np.log(sigma) - 0.5 * math.log(2.0 * math.pi)
    logs = _at_ends(logs, actions, _below(scaled), _below(-scaled))
    found: Doubles = np.where(spread > 0.0, logs, 0.0).sum(1)
    return found


def log_density_of_uniform(actions: Doubles, centers: Doubles, spread: Doubles) -> Doubles:
    """Return log densities (N,) of uniform actions plus Gaussian noise, clipped to [-1, 1].

    Args:
        actions: (N, A) in [-1, 1].
        centers: (N, A) of the noise.
        spread: (A,) or (1,) of the noise; 0 means that actions are uniform.
    """
    sigma = np.maximum(spread, 1e-9)
    upper, lower = (actions - centers + 1.0) / sigma, (actions - centers - 1.0) / sigma
    logs = np.log(np.maximum(0.5 * (_below(upper) - _below(lower)), 1e-300))
    # The mean of the normal distribution function between the two bounds; from above by symmetry.
    below = 0.5 * sigma * (_summed(upper) - _summed(lower))
    above = 0.5 * sigma * (_summed(-lower) - _summed(-upper))
    logs = _at_ends(logs, actions, below, above)
    found: Doubles = np.where(spread > 0.0, logs, -math.log(2.0)).sum(1)
    return found


def _at_ends(logs: Doubles, actions: Doubles, lowest: Doubles, highest: Doubles) -> Doubles:
    """Replace log densities by log probabilities where actions are at an end."""
    for end, probability in ((-1.0, lowest), (1.0, highest)):
        logs = np.where(actions == end, np.log(np.maximum(probability, 1e-300)), logs)
    return np.maximum(logs, LOWEST_LOG)


def _below(values: Doubles) -> Doubles:
    """Return the standard normal distribution function."""
    found: Doubles = 0.5 * np.asarray(_erfc(-values / math.sqrt(2.0)), dtype=np.float64)
    return found


def _summed(values: Doubles) -> Doubles:
    """Return the integral of the standard normal distribution function up to values."""
    density = np.exp(-0.5 * values**2) / math.sqrt(2.0 * math.pi)
    found: Doubles = values * _below(values) + density
    return found
