"""The link of an actor or compressor whose owner calls it: nothing runs beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.transport.link import (
    NONE,
    ActorLink,
    CompressorLink,
    Weights,
)
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import encode


class MemoryLink(ActorLink, CompressorLink):
    """Reads what its owner puts into ``stores``, by number, and keeps what is sent.

    Attributes:
        newest: version of the learner's latest weights; its owner sets it.
        counts: what the actor has counted so far.
        pulled: the newest version of any weights that were pulled; -1 for none.
        sent: kinds and values of the messages; the owner takes them out.
    """

    def __init__(
        self, stores: dict[int, Weights], trajectory: TrajectorySpec, number: int = 0
    ) -> None:
        self.stores = stores
        self.newest = NONE
        self.counts: Counter[str] = Counter()
        self.pulled = NONE
        self.sent: list[tuple[str, Any]] = []
        self._spec, self._number = trajectory, number
        self._filled = np.zeros(0, np.uint8)

    @property
    def learner_version(self) -> int:
        """The newest version of the learner's weights."""
        return self.newest

    @property
    def stopped(self) -> bool:
        """Never: its owner just calls no more."""
        return False

    def report(self, kind: str, value: Any) -> None:
        """Keep a message."""
        self.sent.append((kind, value))

    def take_sent(self) -> list[tuple[str, Any]]:
        """Return the messages since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`; never waits."""
        newest = self.stores.get(store)
        if newest is None or newest.version <= have:
            return None
        if store in (FULL_PRECISION, COMPRESSED):
            self.pulled = max(self.pulled, newest.version)
        return newest

    def begin(self) -> Trajectory:
        """See :meth:`ActorLink.begin`."""
        self._filled = np.zeros(self._spec.nbytes, np.uint8)
        return self._spec.view(self._filled, self._number)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """See :meth:`ActorLink.commit`; the owner takes the trajectory by :meth:`filled`."""
        self._spec.check(self._spec.view(self._filled, self._number))
        self.counts.update(counts)
        if episodes:
            self.report("episodes", episodes)

    def filled(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of the trajectory that was committed last."""
        return self._filled

    def publish(self, policy: Policy) -> None:
        """See :meth:`CompressorLink.publish`."""
        encoded = encode(policy)
        self.stores[COMPRESSED] = Weights(encoded.header, encoded.payload(), policy.version)
