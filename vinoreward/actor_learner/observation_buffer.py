"""Recent observations for ranges, distillation and indicators; counters of a training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory

Array = npt.NDArray[Any]


def described(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Return the lag of the acting networks in versions, and the fraction of compressed steps.

    Args:
        trajectories: at least one.
        version: the learner's.
    """
    behind = [version - one.versions for one in trajectories]
    shares = [(one.network == COMPRESSED).mean() for one in trajectories]
    return {
        "lag_mean": float(np.mean([part.mean() for part in behind])),
        "lag_max": float(max(part.max() for part in behind)),
        "compressed_share": float(np.mean(shares)),
    }


class ObservationBuffer:
    """The last observations, a few of every trajectory, so that they reach further back.

    Args:
        first: (N, *shape) initial rows, resets among them.
        capacity: maximum number of rows.
        each: maximum number of rows from one trajectory.
        seed: of the random choice of rows.
    """

    def __init__(self, first: Array, capacity: int, *, each: int = 64, seed: int = 0) -> None:
        # Parts, joined only on request: 1024 rows of images are 29 MB.
        self._parts = deque([np.array(first[-capacity:])])
        self._count = len(self._parts[0])
        self._capacity = capacity
        self._each = each
        self._random = np.random.default_rng([seed, 0x0B5])

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Copy rows of some trajectories, whose memory may be reused afterwards."""
        for trajectory in trajectories:
            rows = trajectory.observations.reshape(-1, *trajectory.observations.shape[2:])
            chosen = self._random.permutation(len(rows))[: self._each]
            self._parts.append(rows[chosen])
            self._count += len(chosen)
        while self._count - len(self._parts[0]) >= self._capacity:
            self._count -= len(self._parts.popleft())

    @property
    def rows(self) -> Array:
        """(N, *shape), newest last; a copy."""
        return np.concatenate(self._parts)[-self._capacity :]


class Episodes:
    """Returns of the last episodes.

    Args:
        window: episodes in the mean.
    """

    def __init__(self, window: int = 100) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.count = 0

    def add(self, value: float) -> None:
        """Add an episode's return (its score, if that differs from its reward)."""
        self.count += 1
        self.returns.append(value)

    @property
    def mean(self) -> float:
        """Mean return of the last episodes; NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else float("nan")


@dataclass
class Totals:
    """Counters that continue after a resume.

    Attributes:
        steps: environment steps.
        version: number of pushes.
        episodes: finished episodes.
    """

    steps: int = 0
    version: int = 0
    episodes: Episodes = field(default_factory=Episodes)
