"""Interfaces between actors or the compressor and the learner; an engine implements them.

The loops of actors and compressor use only these classes, not shared memory or Ray.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import Bytes, decode

NONE = -1
"""Version of missing weights."""
SETTINGS, OBSERVATIONS = 2, 3
"""Stores other than those of weights, whose number is that of their network."""
STORES = ("full", "compressed", "settings", "observations")
"""Names of the stores, by number."""
LONGEST_PUSH = 300.0
"""Maximum seconds that the compressor may work between two calls of its link. Until then a thread
sends its heartbeats; a stopped process sends none."""


@dataclass(frozen=True)
class Weights:
    """A received policy, or the newest content of another store.

    Attributes:
        header: see :func:`vinoreward.policies.wire.encode`.
        payload: (bytes,) uint8; may lie in shared memory.
        version: of the learner's policy from which it was made; -1 if unknown.
    """

    header: bytes
    payload: Bytes
    version: int = NONE

    def policy(self) -> Policy:
        """Return the policy; its arrays may be views of the payload."""
        return decode(self.header, self.payload)


class Link(abc.ABC):
    """Common interface of actors and compressor.

    An engine implements three members, none of which can be expressed by the others: the stop flag
    (:attr:`stopped`), reading (:meth:`pull`) and sending (:meth:`report`).
    """

    _settings = (NONE, ActorSettings())

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether training is over or the learner is gone. Also sends a heartbeat."""

    @abc.abstractmethod
    def report(self, kind: str, value: Any) -> None:
        """Send a small message to the learner: plain data of a kind such as ``"refused"``."""

    @abc.abstractmethod
    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """Return the newer content of a store, or None.

        It may lie in shared memory and is valid until the next successful pull of the same store.
        Cheap if there is nothing newer.

        Args:
            store: 0 the learner's own weights, 1 the compressed ones, or :data:`SETTINGS`; a
                compressor also has :data:`OBSERVATIONS`.
            have: version of the current content (the learner's for weights), -1 for none.
            wait: block until there is newer content or training is over.
        """

    def settings(self) -> ActorSettings:
        """Return the latest settings; cheap."""
        found = self.pull(SETTINGS, self._settings[0])
        if found is not None:
            self._settings = (found.version, ActorSettings.from_json(found.header))
        return self._settings[1]


class ActorLink(Link):
    """Interface of an actor.

    Three more members: a trajectory is filled in place, so it needs a begin and a commit, and the
    version is read far more often than the weights.
    """

    @property
    @abc.abstractmethod
    def learner_version(self) -> int:
        """Number of the learner's updates."""

    @abc.abstractmethod
    def begin(self) -> Trajectory | None:
        """Wait for a slot and the limiter; return a trajectory to fill, or None to stop."""

    @abc.abstractmethod
    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Hand over the trajectory of :meth:`begin`.

        Args:
            counts: to add to this actor's counters.
            episodes: finished in it, as plain data.
        """


class CompressorLink(Link):
    """Interface of the compressor."""

    _seen = NONE
    _rows: npt.NDArray[np.generic] | None = None

    @abc.abstractmethod
    def publish(self, policy: Policy) -> None:
        """Publish a compressed policy to all actors."""

    def observations(self) -> npt.NDArray[np.generic] | None:
        """Return a copy of recent observations (N, *shape), or None if there are none."""
        found = self.pull(OBSERVATIONS, self._seen)
        if found is not None:
            about = json.loads(found.header)
            self._seen = found.version
            self._rows = found.payload.view(about["dtype"]).reshape(about["shape"])
        return None if self._rows is None else self._rows.copy()


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclass instances as plain data."""
    return [dataclasses.asdict(row) for row in rows]
