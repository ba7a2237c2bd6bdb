"""Weights that were pushed, kept to hold what was made of them against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vinoreward.monitoring.setting import FULL_BITS
from vinoreward.policies.policy import Policy

KEPT = 1024
KEPT_BYTES = 256 << 20
FEWEST = 5
"""Versions that are kept at most: as many as fit into these bytes, but no fewer than the last."""


@dataclass(frozen=True)
class Pushed:
    """Weights that were pushed, and when.

    Attributes:
        policy: in full precision.
        bits: of a weight on its way.
        steps: environment steps until then.
        seconds: of the training until then.
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
    """The versions that somebody has pulled, and the newest, of which that is not known yet.

    A compressor that takes longer than a push passes versions over, and of those no row ever comes:
    they go first, or they would push out the ones that rows do come of.
    """

    def __init__(self) -> None:
        self._new: dict[int, Pushed] = {}
        self._used: dict[int, Pushed] = {}

    def add(self, pushed: Pushed) -> None:
        """Keep weights that were just pushed."""
        self._new[pushed.version] = pushed
        size = sum(value.nbytes for value in pushed.policy.float_parameters().values())
        most = max(FEWEST, min(KEPT, KEPT_BYTES // max(1, size)))
        while len(self._new) + len(self._used) > most:
            drop = self._new if len(self._new) > most // 2 else self._used
            del drop[next(iter(drop))]

    def pulled(self, versions: Iterable[int]) -> None:
        """Say which versions somebody works with now."""
        for version in versions:
            if version in self._new:
                # There before it is gone here: another thread may look for it.
                self._used[version] = self._new[version]
                del self._new[version]

    def get(self, version: int) -> Pushed | None:
        """Return a version, None if it is not kept."""
        return self._new.get(version) or self._used.get(version)

    @property
    def versions(self) -> list[int]:
        """What is kept."""
        return [*self._used, *self._new]
