"""How an actor, or the compressor, is connected to the learner: what an engine has to provide.

The loops of actors and compressor are written against these classes and know nothing of shared
memory or Ray.
"""

from __future__ import annotations

import abc
import dataclasses
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
LONGEST_PUSH = 300.0
"""Seconds that the compressor may work without a look at its link: late is not dead. Until then a
thread of its own gives its signs of life, which a process that is stopped cannot."""


@dataclass(frozen=True)
class Weights:
    """A policy as it came.

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
    """What actors and compressor have in common."""

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether training is over, or the learner gone. Also says that this process is alive."""

    @abc.abstractmethod
    def settings(self) -> ActorSettings:
        """Return the latest settings; cheap."""

    @abc.abstractmethod
    def report(self, kind: str, value: Any) -> None:
        """Send something small to the learner: plain data, of a kind such as ``"episodes"``."""

    @abc.abstractmethod
    def pull(self, network: int, have: int, *, wait: bool = False) -> Weights | None:
        """Return newer weights.

        They may lie in shared memory and are valid until the next pull of the same network that
        returns some.

        Args:
            network: 0 the learner's own, 1 the compressed ones.
            have: learner's version of those in use, -1 for none.
            wait: for newer ones, until there are some or training is over.
        """


class ActorLink(Link):
    """An actor's."""

    @property
    @abc.abstractmethod
    def learner_version(self) -> int:
        """Updates that the learner has made."""

    @abc.abstractmethod
    def begin(self) -> Trajectory | None:
        """Return a trajectory to fill, once there is room and the learner keeps up; None: stop."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Hand over the trajectory that was begun."""

    @abc.abstractmethod
    def count(self, counts: Mapping[str, int]) -> None:
        """Add to this actor's counters."""


class CompressorLink(Link):
    """The compressor's."""

    @abc.abstractmethod
    def observations(self) -> npt.NDArray[np.generic] | None:
        """Return (N, *shape) recent observations, in memory of their own; None if there are none"""

    @abc.abstractmethod
    def publish(self, policy: Policy) -> None:
        """Make a compressed policy the latest for all actors."""


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclass instances as plain data."""
    return [dataclasses.asdict(row) for row in rows]
