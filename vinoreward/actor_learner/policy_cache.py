"""A cache of pushed weights, to compare compressed versions with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vinoreward.monitoring.strategy import FULL_BITS
from vinoreward.policies.policy import Policy

MAX_VERSIONS = 1024
MAX_BYTES = 256 << 20
MIN_VERSIONS = 5
"""Limits of the cache; MIN_VERSIONS overrides MAX_BYTES."""


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
