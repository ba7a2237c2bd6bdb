"""What the learner's process keeps for the compressor and the monitor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.monitoring.strategy import FULL_BITS
from vinoreward.policies.policy import Policy

Array = npt.NDArray[Any]
MAX_VERSIONS = 1024
MAX_BYTES = 256 << 20
MIN_VERSIONS = 5
"""Limits of the cache; MIN_VERSIONS overrides MAX_BYTES."""


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


@dataclass(frozen=True)
class Pushed:
    """Pushed weights.

    Attributes:
        policy: in full precision.
        bits: per weight on the wire.
        steps: environment steps at the push.
        seconds: of training at the push.
    """

    policy: Policy
    bits: int = FULL_BITS
    steps: int = 0
    seconds: float = 0.0

    @property
    def version(self) -> int:
        """The learner's."""
        return self.policy.version


class PolicyCache:
    """The versions that a process has pulled, and newer ones that may still be pulled.

    A slow compressor skips versions, and no rows of those ever arrive. They are evicted first, so
    that they cannot displace versions that have rows.
    """

    def __init__(self) -> None:
        self._new: dict[int, Pushed] = {}
        self._used: dict[int, Pushed] = {}

    def add(self, pushed: Pushed) -> None:
        """Cache weights that were just pushed."""
        self._new[pushed.version] = pushed
        size = sum(value.nbytes for value in pushed.policy.float_parameters().values())
        most = max(MIN_VERSIONS, min(MAX_VERSIONS, MAX_BYTES // max(1, size)))
        while len(self._new) + len(self._used) > most:
            drop = self._new if len(self._new) > most // 2 else self._used
            del drop[next(iter(drop))]

    def pulled(self, versions: Iterable[int]) -> None:
        """Mark versions as pulled."""
        for version in versions:
            if version in self._new:
                # Add before removing: another thread may look the version up.
                self._used[version] = self._new[version]
                del self._new[version]

    def get(self, version: int) -> Pushed | None:
        """Return a version, or None if it is not cached."""
        return self._new.get(version) or self._used.get(version)

    @property
    def versions(self) -> list[int]:
        """The cached versions."""
        return [*self._used, *self._new]
