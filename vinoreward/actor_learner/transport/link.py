"""How an actor, or the compressor, is connected to the learner: what an engine has to provide.

The loops of actors and compressor are written against these classes and know nothing of shared
memory or Ray.
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
"""Version of weights that nobody has."""
SETTINGS, OBSERVATIONS = 2, 3
"""Stores beside those of weights, which have the number of their network."""
STORES = ("full", "compressed", "settings", "observations")
"""What each store is called, by number."""
LONGEST_PUSH = 300.0
"""Seconds that the compressor may work without a look at its link: late is not dead. Until then a
thread of its own gives its signs of life, which a process that is stopped cannot."""


@dataclass(frozen=True)
class Weights:
    """A policy, or the newest of another store, as it came.

    Attributes:
        header: see :func:`vinoreward.policies.wire.encode`.
        payload: (bytes,) uint8; may lie in shared memory.
        version: learner's, that they were made of; -1 where the link does not say.
    """

    header: bytes
    payload: Bytes
    version: int = NONE

    def policy(self) -> Policy:
        """Return the policy; its arrays may be views of the payload."""
        return decode(self.header, self.payload)


class Link(abc.ABC):
    """What actors and compressor have in common.

    Three members are an engine's own: a process hears (:attr:`stopped`), fetches (:meth:`pull`)
    and tells (:meth:`report`), and no one of these could be put in terms of another.
    """

    _settings = (NONE, ActorSettings())

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether training is over, or the learner gone. Also says that this process is alive."""

    @abc.abstractmethod
    def report(self, kind: str, value: Any) -> None:
        """Send something small to the learner: plain data, of a kind such as ``"refused"``."""

    @abc.abstractmethod
    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """Return what is newer in a store.

        It may lie in shared memory and is valid until the next pull of the same store that returns
        something. Cheap if there is nothing newer.

        Args:
            store: 0 the learner's own weights, 1 the compressed ones, or :data:`SETTINGS`; a
                compressor also has :data:`OBSERVATIONS`.
            have: version of what is in use, the learner's for weights; -1 for none.
            wait: for newer ones, until there are some or training is over.
        """

    def settings(self) -> ActorSettings:
        """Return the latest settings; cheap."""
        found = self.pull(SETTINGS, self._settings[0])
        if found is not None:
            self._settings = (found.version, ActorSettings.from_json(found.header))
        return self._settings[1]


class ActorLink(Link):
    """An actor's.

    Three members more: a trajectory is filled where it will be read, so that it is begun before it
    is handed over, and a version is asked for far more often than the weights of it.
    """

    @property
    @abc.abstractmethod
    def learner_version(self) -> int:
        """Updates that the learner has made."""

    @abc.abstractmethod
    def begin(self) -> Trajectory | None:
        """Return a trajectory to fill, once there is room and the learner keeps up; None: stop."""

    @abc.abstractmethod
    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Hand over the trajectory that was begun.

        Args:
            counts: added to this actor's counters.
            episodes: that have ended in it, as plain data.
        """


class CompressorLink(Link):
    """The compressor's."""

    _seen = NONE
    _rows: npt.NDArray[np.generic] | None = None

    @abc.abstractmethod
    def publish(self, policy: Policy) -> None:
        """Make a compressed policy the latest for all actors."""

    def observations(self) -> npt.NDArray[np.generic] | None:
        """Return (N, *shape) recent observations, in memory of their own; None if there are none"""
        found = self.pull(OBSERVATIONS, self._seen)
        if found is not None:
            about = json.loads(found.header)
            self._seen = found.version
            self._rows = found.payload.view(about["dtype"]).reshape(about["shape"])
        return None if self._rows is None else self._rows.copy()


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclass instances as plain data."""
    return [dataclasses.asdict(row) for row in rows]
