"""Recent experience, kept for what is not learning: ranges, distillation, indicators."""

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
    """Return how many versions old what acted was, and the share that acted compressed.

    Args:
        trajectories: one or more.
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
        first: (N, *shape) to start with, resets among them.
        capacity: rows kept.
        each: rows taken of one trajectory at most.
        seed: decides which.
    """

    def __init__(self, first: Array, capacity: int, *, each: int = 64, seed: int = 0) -> None:
        # Parts, joined only when somebody asks: pictures of 1024 rows are 29 MB.
        self._parts = deque([np.array(first[-capacity:])])
        self._count = len(self._parts[0])
        self._capacity = capacity
        self._each = each
        self._random = np.random.default_rng([seed, 0x0B5])

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Take rows of some trajectories; what they lie in may be used again afterwards."""
        for trajectory in trajectories:
            rows = trajectory.observations.reshape(-1, *trajectory.observations.shape[2:])
            chosen = self._random.permutation(len(rows))[: self._each]
            self._parts.append(rows[chosen])
            self._count += len(chosen)
        while self._count - len(self._parts[0]) >= self._capacity:
            self._count -= len(self._parts.popleft())

    @property
    def rows(self) -> Array:
        """(N, *shape), newest last; in memory of their own."""
        return np.concatenate(self._parts)[-self._capacity :]


class Episodes:
    """Returns of the last episodes.

    Args:
        window: episodes that the mean is taken over.
    """

    def __init__(self, window: int = 100) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.count = 0

    def add(self, value: float) -> None:
        """Count an episode's return (its score, where that differs from its reward)."""
        self.count += 1
        self.returns.append(value)

    @property
    def mean(self) -> float:
        """Mean return of the last episodes, NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else float("nan")


@dataclass
class Totals:
    """What goes on counting over a resume.

    Attributes:
        steps: of environments.
        version: pushes.
        episodes: that have ended.
    """

    steps: int = 0
    version: int = 0
    episodes: Episodes = field(default_factory=Episodes)
